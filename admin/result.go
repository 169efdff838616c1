package admin

import (
	"strconv"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// followed is how the deliveries of one item stand after wait=delivered.
type followed struct {
	deliveries []delivery.Delivery
	complete   bool
	on         bool // the item was followed
}

// tally is what a batch reply counts: items, not messages.
type tally struct{ accepted, duplicate, partial, refused int }

// names are the users of an item whose message was accepted, now or before. (A refused one may have a message of the same id
// by another publisher, whose end is not this one's.)
func (r *pushRequest) names(e *entry, b Batch) []string {
	names := make([]string, 0, e.userTo-e.userFrom)
	for i, user := range r.users[e.userFrom:e.userTo] {
		if b.Result(e.first + i).OK() {
			names = append(names, string(user))
		}
	}
	return names
}

// verdict sums up the outcomes of an item's users. failed is the first refusal.
func (r *pushRequest) verdict(e *entry, b Batch) (status string, failed codec.Result) {
	var accepted, duplicate, refused int
	for i := e.first; i < e.first+e.userTo-e.userFrom; i++ {
		switch res := b.Result(i); {
		case res == codec.ResultDuplicate:
			duplicate++
		case res.OK():
			accepted++
		default:
			if refused++; refused == 1 {
				failed = res
			}
		}
	}
	switch {
	case accepted+duplicate == 0:
		return statusRefused, failed
	case refused > 0:
		return statusPartial, failed
	case accepted > 0:
		return statusAccepted, failed
	}
	return statusDuplicate, failed
}

// The statuses of an item. The first two are also names of results.
const (
	statusAccepted  = "accepted"
	statusDuplicate = "duplicate"
	statusPartial   = "partial" // some users' messages were accepted, others refused
	statusRefused   = "refused"
	statusUnknown   = "unknown" // the outcome did not come in time; only in streams
)

func (t *tally) count(status string) {
	switch status {
	case statusAccepted:
		t.accepted++
	case statusDuplicate:
		t.duplicate++
	case statusPartial:
		t.partial++
	default:
		t.refused++
	}
}

// appendItem appends the members of one item's result, without the braces: ,"message_id":…,"status":…
func (r *pushRequest) appendItem(dst []byte, e *entry, status string, failed codec.Result, b Batch, f *followed, nowMs int64, retention time.Duration) []byte {
	dst = append(dst, `"status":"`...)
	dst = append(dst, status...)
	dst = append(dst, '"')
	if e.problem.code != "" {
		dst = append(dst, `,"error":`...)
		return appendProblem(dst, e.problem)
	}
	dst = append(dst, `,"message_id":`...)
	dst = appendString(dst, e.messageID)
	if status == statusRefused {
		dst = append(dst, `,"error":`...)
		return appendProblem(dst, problemOf(failed))
	}
	if status != statusDuplicate && !e.noAck { // a duplicate's expiry is that of the first one, which is not known here
		ttlMs := int64(e.ttlMs)
		if ttlMs == 0 {
			ttlMs = retention.Milliseconds()
		}
		dst = append(dst, `,"expires_at":`...)
		dst = appendTime(dst, nowMs+ttlMs)
	}
	if f != nil && f.on {
		dst = append(dst, `,"complete":`...)
		dst = strconv.AppendBool(dst, f.complete)
	}
	return r.appendDeliveries(append(dst, `,"deliveries":[`...), e, b, f)
}

// appendDeliveries appends one element a user, or, followed, one a device. It closes the array.
func (r *pushRequest) appendDeliveries(dst []byte, e *entry, b Batch, f *followed) []byte {
	var byUser map[string][]int
	if f != nil && f.on {
		byUser = make(map[string][]int, len(f.deliveries))
		for i := range f.deliveries {
			u := f.deliveries[i].User
			byUser[u] = append(byUser[u], i)
		}
	}
	for i, user := range r.users[e.userFrom:e.userTo] {
		o := b.Outcome(e.first + i)
		if i > 0 {
			dst = append(dst, ',')
		}
		known := byUser[string(user)]
		if !o.Result.OK() || len(known) == 0 {
			dst = appendTarget(dst, user, e, &o)
			continue
		}
		for k, at := range known {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = appendDelivery(dst, o.Result, &f.deliveries[at])
		}
	}
	return append(dst, ']')
}

// appendTarget appends what is known of one user's message right after it was accepted or refused.
func appendTarget(dst []byte, user []byte, e *entry, o *delivery.Outcome) []byte {
	dst = append(dst, `{"user":`...)
	dst = appendString(dst, user)
	if len(e.device) > 0 {
		dst = append(dst, `,"device":`...)
		dst = appendString(dst, e.device)
	}
	if !o.Result.OK() {
		dst = append(dst, `,"status":"refused","error":`...)
		return append(appendProblem(dst, problemOf(o.Result)), '}')
	}
	dst = append(dst, `,"status":"`...)
	dst = append(dst, o.Result.String()...)
	dst = append(dst, '"')
	if e.noAck {
		dst = append(dst, `,"sent":`...)
		dst = strconv.AppendInt(dst, int64(o.Sent), 10)
	} else if o.Result == codec.ResultAccepted {
		dst = append(dst, `,"devices":`...)
		dst = strconv.AppendInt(dst, int64(o.Deliveries), 10)
	}
	if len(o.Refused) > 0 {
		dst = append(dst, `,"refused_by":"`...)
		dst = append(dst, o.RefusedBy.String()...)
		dst = append(dst, `","refused_devices":[`...)
		for i, d := range o.Refused {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendString(dst, d)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
