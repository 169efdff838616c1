package admin

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"holdfast/delivery"
)

// deadLetterView is one dead letter in the list. Seq is a string: JSON numbers lose 64-bit values.
type deadLetterView struct {
	Seq          string     `json:"seq"`
	MessageID    string     `json:"message_id"`
	User         string     `json:"user"`
	Device       string     `json:"device,omitempty"`
	Reason       string     `json:"reason"`
	Attempts     int        `json:"attempts"`
	Type         string     `json:"type,omitempty"`
	Conversation string     `json:"conversation,omitempty"`
	Priority     string     `json:"priority"`
	Accepted     *time.Time `json:"accepted_at,omitempty"`
	Ended        *time.Time `json:"ended_at,omitempty"`
	Payload      []byte     `json:"payload"`  // base64
	Readable     bool       `json:"readable"` // false: the stored message could not be decoded, type and payload are unknown
}

type deadLettersView struct {
	DeadLetters []deadLetterView `json:"dead_letters"`
	Next        string           `json:"next,omitempty"` // give it as after for the next page; none: this was the last one
}

const (
	deadLettersDefault  = 100
	deadLettersRead     = 32      // dead letters read at a time
	deadLettersBytesMax = 4 << 20 // stored bytes of a page, passed by one message at most
)

// handleDeadLetters is GET /v1/dead-letters.
func (s *Server) handleDeadLetters(w http.ResponseWriter, req *http.Request) {
	after, limit, p, ok := s.page(req)
	if !ok {
		writeProblem(w, p, "")
		return
	}
	v, err := s.deadLetterPage(after, limit)
	if err != nil {
		s.failedQuestion(w, err)
		return
	}
	writeJSON(w, v)
}

// deadLetterPage reads up to limit dead letters, some at a time: payloads are large and a page is bounded by bytes as well.
func (s *Server) deadLetterPage(after uint64, limit int) (deadLettersView, error) {
	v := deadLettersView{DeadLetters: []deadLetterView{}}
	for size := 0; s.parts.DeadLetters != nil; {
		letters, err := s.parts.DeadLetters.DeadLetters(after, deadLettersRead)
		if err != nil {
			return v, err
		}
		for i := range letters {
			if len(v.DeadLetters) == limit || size >= deadLettersBytesMax {
				v.Next = strconv.FormatUint(after, 10)
				return v, nil
			}
			v.DeadLetters = append(v.DeadLetters, viewDeadLetter(&letters[i]))
			after = letters[i].Ref.Seq
			size += len(letters[i].Command)
		}
		if len(letters) < deadLettersRead {
			break
		}
	}
	return v, nil
}

func viewDeadLetter(d *DeadLetter) deadLetterView {
	v := deadLetterView{
		Seq: strconv.FormatUint(d.Ref.Seq, 10), MessageID: d.MessageID, User: d.User, Device: d.Device, Reason: d.Reason.String(),
		Attempts: int(d.Attempts), Priority: d.Priority.String(), Accepted: stamp(d.AcceptedMs), Ended: stamp(d.EndedMs),
		Payload: []byte{},
	}
	var c delivery.Command
	if d.Command != nil && delivery.DecodeCommand(d.Command, &c) == nil {
		v.Readable = true
		v.Type, v.Conversation = string(c.Type), string(c.Conversation)
		v.Payload = append(v.Payload, c.Payload...)
	}
	return v
}

// page reads after and limit.
func (s *Server) page(req *http.Request) (after uint64, limit int, p problem, ok bool) {
	limit = min(deadLettersDefault, s.config.DeadLettersLimit)
	values, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return 0, 0, problem{code: codeBadQuery, text: "the query is malformed: " + err.Error()}, false
	}
	for name, v := range values {
		switch name {
		case "after":
			after, err = strconv.ParseUint(v[0], 10, 64)
			p = problem{code: codeBadQuery, field: name, text: "must be the next of the page before"}
		case "limit":
			limit, err = strconv.Atoi(v[0])
			p = problem{code: codeBadQuery, field: name, text: "must be 1 to " + strconv.Itoa(s.config.DeadLettersLimit)}
			if err == nil && (limit < 1 || limit > s.config.DeadLettersLimit) {
				return 0, 0, p, false
			}
		default:
			return 0, 0, problem{code: codeBadQuery, field: string(clip([]byte(name))), text: "unknown parameter; there are after and limit"}, false
		}
		if err != nil || len(v) != 1 {
			return 0, 0, p, false
		}
	}
	return after, limit, problem{}, true
}

// handleDropDead is DELETE /v1/dead-letters/{seq}.
func (s *Server) handleDropDead(w http.ResponseWriter, req *http.Request) {
	if !noQuery(w, req) {
		return
	}
	seq, err := strconv.ParseUint(req.PathValue("seq"), 10, 64)
	if err != nil {
		writeProblem(w, problem{code: codeBadQuery, field: "seq", text: "must be the seq of a dead letter"}, "")
		return
	}
	dropped := false
	if s.parts.DeadLetters != nil {
		if dropped, err = s.parts.DeadLetters.DropDead(seq); err != nil {
			s.failedQuestion(w, err)
			return
		}
	}
	if !dropped {
		writeProblem(w, problem{code: codeNotFound, text: "there is no dead letter with this seq"}, "")
		return
	}
	writeJSON(w, struct {
		Dropped string `json:"dropped"`
	}{strconv.FormatUint(seq, 10)})
}
