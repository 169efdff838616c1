package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// deliveryView is one delivery of a message in a reply.
type deliveryView struct {
	User      string     `json:"user"`
	Device    string     `json:"device,omitempty"` // none: the default queue of a user no device of which is known yet
	State     string     `json:"state"`
	Online    bool       `json:"online"`
	Attempts  int        `json:"attempts"`
	Request   uint64     `json:"request_number,omitempty"`
	DueAt     *time.Time `json:"due_at,omitempty"`
	Level     string     `json:"level,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Priority  string     `json:"priority"`
	Bytes     int        `json:"bytes"`
	Accepted  *time.Time `json:"accepted_at,omitempty"`
	Expires   *time.Time `json:"expires_at,omitempty"`
	Ended     *time.Time `json:"ended_at,omitempty"`
	LatencyMs *int64     `json:"latency_ms,omitempty"` // acceptance to ACK
}

// messageView is the reply about a message.
type messageView struct {
	MessageID  string         `json:"message_id"`
	Complete   bool           `json:"complete"` // every delivery has ended
	Cancelled  *int           `json:"cancelled,omitempty"`
	Deliveries []deliveryView `json:"deliveries"`
}

func viewDelivery(d *delivery.Delivery) deliveryView {
	v := deliveryView{
		User: d.User, Device: d.Device, State: d.Status.String(), Online: d.Online, Attempts: int(d.Attempts), Request: d.Number,
		DueAt: stamp(d.DueMs), Reason: d.Reason.String(), Priority: d.Priority.String(), Bytes: d.Bytes,
		Accepted: stamp(d.AcceptedMs), Expires: stamp(d.ExpireAtMs), Ended: stamp(d.EndedMs),
	}
	if d.Status == delivery.StatusAcked {
		v.Level = d.Level.String()
		latency := max(0, d.EndedMs-d.AcceptedMs)
		v.LatencyMs = &latency
	}
	return v
}

func viewMessage(id string, ds []delivery.Delivery) messageView {
	v := messageView{MessageID: id, Complete: allEnded(ds), Deliveries: make([]deliveryView, len(ds))}
	for i := range ds {
		v.Deliveries[i] = viewDelivery(&ds[i])
	}
	return v
}

// handleMessage is GET /v1/messages/{id}. With wait=ended it answers when every delivery has ended, or when the timeout is over.
func (s *Server) handleMessage(w http.ResponseWriter, req *http.Request) {
	o, p, ok := s.query(req, "wait", func(v string) (waitMode, bool) { return waitDelivered, v == "ended" }, `must be "ended"`)
	if !ok {
		writeProblem(w, p, "")
		return
	}
	id, p, ok := messageID(req)
	if !ok {
		writeProblem(w, p, "")
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), lookTimeout)
	defer cancel()
	ds, err := s.parts.Inspector.Message(ctx, id)
	if err == nil && o.mode == waitDelivered && !allEnded(ds) {
		wait, cancel := context.WithTimeout(req.Context(), s.limit(o.timeout))
		defer cancel()
		defer context.AfterFunc(s.stopping, cancel)()
		ds, _, err = s.follow(wait, id)
	}
	switch {
	case req.Context().Err() != nil:
	case err != nil:
		s.failedQuestion(w, err)
	case len(ds) == 0:
		writeProblem(w, unknownMessage(), "")
	default:
		writeJSON(w, viewMessage(id, ds))
	}
}

// handleCancel is DELETE /v1/messages/{id}.
func (s *Server) handleCancel(w http.ResponseWriter, req *http.Request) {
	if !noQuery(w, req) {
		return
	}
	id, p, ok := messageID(req)
	if !ok {
		writeProblem(w, p, "")
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), lookTimeout)
	defer cancel()
	ds, cancelled, err := s.parts.Inspector.Cancel(ctx, id)
	v := viewMessage(id, ds)
	switch {
	case err != nil:
		s.failedQuestion(w, err)
	case len(ds) == 0:
		writeProblem(w, unknownMessage(), "")
	case cancelled == 0 && v.Complete:
		body, _ := json.Marshal(v.Deliveries) // plain values: it cannot fail
		writeProblem(w, problem{code: codeAlreadyEnded, text: "every delivery of this message had ended before"}, `,"deliveries":`+string(body))
	default:
		v.Cancelled = &cancelled
		writeJSON(w, v)
	}
}

func unknownMessage() problem {
	return problem{code: codeNotFound, text: "no message with this id is known: it was never accepted, or it ended some time ago"}
}

// messageID is the id in the path.
func messageID(req *http.Request) (string, problem, bool) {
	id := req.PathValue("id")
	if !codec.ValidMessageID([]byte(id)) {
		return "", problemOf(codec.ResultBadMessageID), false
	}
	return id, problem{}, true
}

// failedQuestion answers when the dispatcher did not.
func (s *Server) failedQuestion(w http.ResponseWriter, err error) {
	s.log.Warn("a question to the dispatcher failed", "error", err)
	writeProblem(w, problemOf(codec.ResultUnavailable), "")
}

// writeJSON answers a request that went well with a value of this package, which always encodes.
func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("admin: a reply does not encode: " + err.Error())
	}
	writeBody(w, http.StatusOK, append(body, '\n'))
}
