package admin

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// waitMode is how long a publisher wants its reply to take.
type waitMode uint8

const (
	waitUnset     waitMode = iota
	waitAccepted           // until the message is durable
	waitDelivered          // until every delivery has ended, or the timeout
)

const (
	waitHint      = `must be "accepted" (durable, the default) or "delivered" (every delivery has ended)`
	timeoutHint   = "must be above 0"
	noAckWaitHint = "a message with ack=false is not followed: it cannot be waited for"
)

func parseWaitMode(v string) (waitMode, bool) {
	switch v {
	case "accepted":
		return waitAccepted, true
	case "delivered":
		return waitDelivered, true
	}
	return waitUnset, false
}

// waitOptions is what the query, or the fields of a single push, say about waiting.
type waitOptions struct {
	mode    waitMode
	timeout time.Duration // 0: the default
}

// query reads the parameters of a push. Unknown ones are errors: "?waitt=delivered" must not quietly mean something else.
func (s *Server) query(r *http.Request, named string, parse func(string) (waitMode, bool), hint string) (o waitOptions, p problem, ok bool) {
	if r.URL.RawQuery == "" {
		return o, problem{}, true // the hot path does not build a map
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return o, problem{code: codeBadQuery, text: "the query is malformed: " + err.Error()}, false
	}
	for name, v := range values {
		ok := len(v) == 1
		switch {
		case !ok:
			return o, problem{code: codeBadQuery, field: name, text: "the parameter is given twice"}, false
		case name == named:
			if o.mode, ok = parse(v[0]); !ok {
				return o, problem{code: codeBadQuery, field: name, text: hint}, false
			}
		case name == "timeout":
			if o.timeout, ok = parseDuration([]byte(v[0])); !ok || o.timeout <= 0 {
				return o, problem{code: codeBadQuery, field: name, text: durationHint + ", above 0"}, false
			}
		default:
			return o, problem{code: codeBadQuery, field: string(clip([]byte(name))), text: "unknown parameter; there are " + named + " and timeout"}, false
		}
	}
	return o, problem{}, true
}

// noQuery refuses parameters where there are none: "DELETE /v1/messages/m1?user=alice" must not take back everybody's.
func noQuery(w http.ResponseWriter, req *http.Request) bool {
	if req.URL.RawQuery == "" {
		return true
	}
	writeProblem(w, problem{code: codeBadQuery, text: "there are no parameters for this request"}, "")
	return false
}

// limit is the timeout that holds: the default where none was given, and never over the maximum.
func (s *Server) limit(timeout time.Duration) time.Duration {
	if timeout == 0 {
		timeout = s.config.WaitDefault
	}
	return min(timeout, s.config.WaitMax)
}

// pending is a batch that was pushed. Either the handler takes its outcome, or the handler gave up first and whoever completes
// the batch releases it: the one who comes second owns it.
type pending struct {
	batch Batch
	done  chan struct{}
	first atomic.Bool // somebody was here already
}

// newPending is an empty batch to fill and to push.
func (s *Server) newPending() *pending {
	p := &pending{done: make(chan struct{})}
	p.batch = s.parts.Pusher.NewBatch(p.finish)
	return p
}

func (p *pending) finish() {
	if p.first.CompareAndSwap(false, true) {
		close(p.done)
		return
	}
	p.batch.Release()
}

// abandon gives the batch to whoever completes it.
func (p *pending) abandon() {
	if !p.first.CompareAndSwap(false, true) {
		p.batch.Release()
	}
}

// await returns true when the outcome is there: the batch is the caller's then, to read and to release. Otherwise (ctx ended, or
// PushTimeout passed) the batch is no longer the caller's.
func (s *Server) await(ctx context.Context, p *pending) bool {
	select {
	case <-p.done:
		return true
	default:
	}
	t := time.NewTimer(s.config.PushTimeout)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	p.abandon()
	return false
}

// follow waits until every delivery of a message has ended or ctx does, and returns how they stand then; with users, of those to
// them only, as a message id is unique for one user and not for all. complete: all ended.
func (s *Server) follow(ctx context.Context, messageID string, users ...string) (ds []delivery.Delivery, complete bool, err error) {
	ds, err = s.parts.Inspector.Wait(ctx, messageID, users...)
	if err == nil {
		return ds, true, nil
	}
	if ctx.Err() == nil {
		return nil, false, err
	}
	// The time is over, which is no failure: tell how it stands. The look has its own limit, ctx has none left.
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	ds, err = s.parts.Inspector.Message(look, messageID)
	if len(users) > 0 {
		named := make(map[string]bool, len(users))
		for _, user := range users {
			named[user] = true
		}
		ds = slices.DeleteFunc(ds, func(d delivery.Delivery) bool { return !named[d.User] })
	}
	return ds, err == nil && allEnded(ds), err
}

// lookTimeout bounds a question to the dispatcher that needs no waiting for clients.
const lookTimeout = 5 * time.Second

func allEnded(ds []delivery.Delivery) bool {
	for i := range ds {
		if !ds[i].Status.End() {
			return false
		}
	}
	return true
}

// appendDelivery appends one followed delivery of a pushed message.
func appendDelivery(dst []byte, r codec.Result, d *delivery.Delivery) []byte {
	dst = append(dst, `{"user":`...)
	dst = appendString(dst, d.User)
	dst = append(dst, `,"status":"`...)
	dst = append(dst, r.String()...)
	dst = append(dst, '"')
	if d.Device != "" {
		dst = append(dst, `,"device":`...)
		dst = appendString(dst, d.Device)
	}
	dst = append(dst, `,"state":"`...)
	dst = append(dst, d.Status.String()...)
	dst = append(dst, `","attempts":`...)
	dst = strconv.AppendUint(dst, uint64(d.Attempts), 10)
	if d.EndedMs != 0 {
		dst = append(dst, `,"ended_at":`...)
		dst = appendTime(dst, d.EndedMs)
	}
	if d.Status == delivery.StatusAcked {
		dst = append(dst, `,"level":"`...)
		dst = append(dst, d.Level.String()...)
		dst = append(dst, `","latency_ms":`...)
		dst = strconv.AppendInt(dst, max(0, d.EndedMs-d.AcceptedMs), 10)
	}
	if reason := d.Reason.String(); reason != "" {
		dst = append(dst, `,"reason":"`...)
		dst = append(dst, reason...)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}
