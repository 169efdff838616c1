package admin

import (
	"context"
	"mime"
	"net/http"
	"strconv"
	"time"

	"holdfast/codec"
)

// handlePush is POST /v1/push: one object, an array, or a stream of lines.
func (s *Server) handlePush(w http.ResponseWriter, req *http.Request) {
	o, p, ok := s.query(req, "wait", parseWaitMode, waitHint)
	if !ok {
		writeProblem(w, p, "")
		return
	}
	switch media(req) {
	case mediaLines:
		s.pushStream(w, req, o)
	case mediaJSON:
		s.pushBody(w, req, o)
	default:
		writeProblem(w, problem{code: codeUnsupportedMedia,
			text: "send JSON (application/json) or one JSON object a line (application/x-ndjson), not compressed"}, "")
	}
}

type mediaKind uint8

const (
	mediaOther mediaKind = iota
	mediaJSON
	mediaLines
)

// media tells the kinds of body apart. What curl says when it is told nothing (a form) counts as JSON: the first command of a
// newcomer has to work, and there is no form here to mistake it for. Other pages' forms are kept out by their origin.
func media(req *http.Request) mediaKind {
	if e := req.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return mediaOther
	}
	name := req.Header.Get("Content-Type")
	switch name {
	case "", "application/json":
		return mediaJSON // the hot path does not parse
	}
	name, _, err := mime.ParseMediaType(name)
	if err != nil {
		return mediaOther
	}
	switch name {
	case "application/json", "text/json", "text/plain", "application/x-www-form-urlencoded":
		return mediaJSON
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		return mediaLines
	}
	return mediaOther
}

// pushBody is a push of one JSON document.
func (s *Server) pushBody(w http.ResponseWriter, req *http.Request, o waitOptions) {
	r := s.requests.get()
	defer s.release(r)
	if p, ok := s.readBody(w, req, r); !ok {
		writeProblem(w, p, "")
		return
	}
	push := s.newPending()
	single, fields, p, ok := r.decodeBody(push.batch, s.limits())
	if !ok {
		push.batch.Release()
		s.count(tally{refused: 1})
		writeProblem(w, p, "")
		return
	}
	if o.mode == waitUnset {
		o.mode = fields.mode
	}
	if o.timeout == 0 {
		o.timeout = fields.timeout
	}
	if single && o.mode == waitDelivered && r.entries[0].noAck {
		push.batch.Release()
		p, _ = refuse(codec.ResultBadField, "wait", noAckWaitHint)
		writeProblem(w, p, "")
		return
	}
	started := time.Now()
	if !s.pushed(req.Context(), push, r) {
		if req.Context().Err() == nil {
			writeProblem(w, problem{code: codeTimeout, text: unknownOutcomeText}, r.knownID(single))
		}
		return // nobody is there to be told
	}
	defer push.batch.Release()
	states := s.followAll(req.Context(), r, push.batch, o)
	if req.Context().Err() != nil {
		return
	}
	s.reply(w, r, push.batch, states, single, started)
}

const unknownOutcomeText = "the outcome is not known yet: send the same message again with this message_id, which does no harm"

// pushed hands the batch over and waits for its outcome.
func (s *Server) pushed(ctx context.Context, push *pending, r *pushRequest) bool {
	if r.added == 0 {
		return true // nothing but faults: the pusher is not bothered
	}
	s.parts.Pusher.Push(push.batch)
	return s.await(ctx, push)
}

// knownID names the message of a single push in an error reply.
func (r *pushRequest) knownID(single bool) string {
	if !single {
		return ""
	}
	return string(appendString([]byte(`,"message_id":`), r.entries[0].messageID))
}

// followAll waits for the ends of everything that was accepted, with one deadline for all of it; nil with wait=accepted. A stop of
// the server ends the waiting, not the reply.
func (s *Server) followAll(ctx context.Context, r *pushRequest, b Batch, o waitOptions) []followed {
	if o.mode != waitDelivered {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit(o.timeout))
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	states := make([]followed, len(r.entries))
	for i := range r.entries {
		e := &r.entries[i]
		if e.problem.code != "" || e.noAck {
			continue
		}
		if status, _ := r.verdict(e, b); status == statusRefused {
			continue
		}
		ds, complete, err := s.follow(ctx, string(e.messageID), r.names(e, b)...)
		if err != nil {
			s.log.Warn("following a pushed message failed", "message_id", string(e.messageID), "error", err)
		}
		states[i] = followed{deliveries: ds, complete: complete && err == nil, on: true}
	}
	return states
}

// reply writes the result of a single push or of a batch.
func (s *Server) reply(w http.ResponseWriter, r *pushRequest, b Batch, states []followed, single bool, started time.Time) {
	nowMs := started.UnixMilli()
	var t tally
	state := func(i int) *followed {
		if states == nil {
			return nil
		}
		return &states[i]
	}
	r.out = append(r.out[:0], '{')
	if single {
		e := &r.entries[0]
		verdict, failed := r.verdict(e, b)
		t.count(verdict)
		if verdict == statusRefused {
			s.count(t)
			writeProblem(w, problemOf(failed), r.knownID(true))
			return
		}
		if verdict == statusPartial {
			s.meters.refuse(failed.String())
		}
		r.out = r.appendItem(r.out, e, verdict, failed, b, state(0), nowMs, s.config.Retention)
	} else {
		r.out = append(r.out, `"results":[`...)
		for i := range r.entries {
			if i > 0 {
				r.out = append(r.out, ',')
			}
			r.out = s.appendIndexed(r.out, r, i, i, b, state(i), nowMs, &t)
		}
		r.out = append(r.out, `],"counts":`...)
		r.out = t.append(r.out, len(r.entries))
	}
	if states != nil {
		r.out = append(r.out, `,"waited_ms":`...)
		r.out = strconv.AppendFloat(r.out, float64(time.Since(started).Microseconds())/1000, 'f', -1, 64)
	}
	r.out = append(r.out, '}', '\n')
	s.count(t)
	writeBody(w, http.StatusOK, r.out)
}

// appendIndexed appends the result of entry i as an object that names its index in the request.
func (s *Server) appendIndexed(dst []byte, r *pushRequest, i, index int, b Batch, f *followed, nowMs int64, t *tally) []byte {
	e := &r.entries[i]
	verdict, failed := statusRefused, codec.ResultAccepted
	if e.problem.code == "" {
		verdict, failed = r.verdict(e, b)
	}
	t.count(verdict)
	switch {
	case e.problem.code != "":
		s.meters.refuse(e.problem.code)
	case verdict == statusRefused || verdict == statusPartial:
		s.meters.refuse(failed.String())
	}
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, ',')
	dst = r.appendItem(dst, e, verdict, failed, b, f, nowMs, s.config.Retention)
	return append(dst, '}')
}

func (t *tally) append(dst []byte, items int) []byte {
	for _, n := range []struct {
		name  string
		value int
	}{{`{"items":`, items}, {`,"accepted":`, t.accepted}, {`,"duplicate":`, t.duplicate}, {`,"partial":`, t.partial}, {`,"refused":`, t.refused}} {
		dst = append(dst, n.name...)
		dst = strconv.AppendInt(dst, int64(n.value), 10)
	}
	return append(dst, '}')
}
