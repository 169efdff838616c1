package admin

import (
	"bytes"
	"crypto/rand"
	"strconv"
	"sync"

	"holdfast/codec"
)

// pushRequest is the working memory of one JSON request, or of one group of a stream, from the first byte read to the last byte
// written. It is pooled; its slices refer to one another and die together.
type pushRequest struct {
	body    []byte
	scan    scanner
	item    pushItem
	entries []entry
	users   [][]byte // of all entries
	ids     []byte   // message ids made here
	out     []byte   // the reply
	added   int      // messages in the batch
	charged int64    // bytes of the server's body memory that the body takes
	copies  int64    // and that copies for the users of one item take
}

// limits is what one request, or one line of a stream, may come to.
type limits struct {
	items  int     // messages: items times users
	copies int64   // bytes that items with several users are copied to: a short body can ask for a lot
	memory *memory // what the copies are charged to
}

// entry is one item of the request: what became of decoding it, and where its messages are in the batch.
type entry struct {
	problem   problem // zero: it is in the batch
	messageID []byte
	device    []byte
	userFrom  int // users[userFrom:userTo], batch indices first…
	userTo    int
	first     int
	ttlMs     uint64
	noAck     bool
}

// pooledBytesMax keeps one large request from living on in the pool.
const pooledBytesMax = 1 << 20

// requestPool is a sync.Pool with types.
type requestPool struct{ pool sync.Pool }

func (p *requestPool) get() *pushRequest {
	if r, ok := p.pool.Get().(*pushRequest); ok {
		return r
	}
	return new(pushRequest)
}

func (p *requestPool) put(r *pushRequest) {
	if cap(r.body)+cap(r.out)+cap(r.scan.scratch) > pooledBytesMax {
		return
	}
	r.clear()
	r.body, r.out = r.body[:0], r.out[:0]
	r.scan.reset(nil)
	p.pool.Put(r)
}

// clear forgets the items, not the body.
func (r *pushRequest) clear() {
	clear(r.entries) // they hold slices of bodies
	clear(r.users)
	r.entries, r.users, r.ids, r.added = r.entries[:0], r.users[:0], r.ids[:0], 0
	r.scan.scratch = r.scan.scratch[:0]
}

// decodeBody reads a whole JSON body into b: one object or an array. single: it was an object, with its own wait options.
// A problem is about the request as a whole, and nothing of it is to be pushed; what is wrong with one item of an array is in its
// entry.
func (r *pushRequest) decodeBody(b Batch, l *limits) (single bool, o waitOptions, p problem, ok bool) {
	r.clear()
	r.scan.reset(r.body)
	s := &r.scan
	if s.peek() != '[' {
		p, ok = r.item.decode(s)
		if ok && !s.end() || !ok && p.code == "" {
			return true, o, badJSON(s), false
		}
		if !ok {
			return true, o, p, false
		}
		o = waitOptions{r.item.wait, r.item.waitTimeout}
		p, ok = r.add(b, l)
		return true, o, p, ok
	}
	s.i++
	for first := true; !s.take(']'); first = false {
		if !first && !s.expect(',', "or ']' after an item") {
			return false, o, badJSON(s), false
		}
		if p, ok = r.element(b, l); !ok {
			return false, o, p, false
		}
	}
	if !s.end() {
		return false, o, badJSON(s), false
	}
	return false, o, problem{}, true
}

// element reads one item of an array. Only what makes the rest of the text unreadable is a problem of the request.
func (r *pushRequest) element(b Batch, l *limits) (problem, bool) {
	s := &r.scan
	s.space()
	start := s.i
	p, ok := r.item.decode(s)
	if ok {
		if r.item.given&(fieldWait|fieldTimeout) == 0 {
			return r.add(b, l)
		}
		p, _ = refuse(codec.ResultBadField, "wait", "belongs to the whole batch: use the query parameters wait and timeout")
	}
	if s.fault != "" {
		return badJSON(s), false
	}
	// The fault is in a field. Its item ends somewhere behind: read it again as plain JSON to get there.
	s.i = start
	if !s.value(depthMax) {
		return badJSON(s), false
	}
	if len(r.entries) >= l.items {
		return tooManyItems(l.items), false
	}
	r.entries = append(r.entries, entry{problem: p})
	return problem{}, true
}

// decodeLine reads one line of a stream. What is wrong with it is in its entry: the next line starts afresh.
func (r *pushRequest) decodeLine(b Batch, line []byte, l *limits) {
	s := &r.scan
	s.b, s.i, s.fault = line, 0, "" // scratch holds what earlier lines of the group put there
	p, ok := r.item.decode(s)
	switch {
	case ok && !s.end(), !ok && p.code == "":
		p, ok = badJSON(s), false
	case ok && r.item.given&(fieldWait|fieldTimeout) != 0:
		p, ok = refuse(codec.ResultBadField, "wait", "belongs to the whole stream: use the query parameters wait and timeout")
	case ok && len(r.item.users) > l.items:
		p, ok = tooManyItems(l.items), false
	case ok:
		p, ok = r.fits(l)
	}
	if !ok {
		r.entries = append(r.entries, entry{problem: p})
		return
	}
	r.put(b)
}

// add puts the current item into the batch unless that makes it too many.
func (r *pushRequest) add(b Batch, l *limits) (problem, bool) {
	if len(r.entries) >= l.items || r.added+len(r.item.users) > l.items {
		return tooManyItems(l.items), false
	}
	if p, ok := r.fits(l); !ok {
		return p, false
	}
	r.put(b)
	return problem{}, true
}

// fits charges what the users of the current item make of it, beyond the body it came in.
func (r *pushRequest) fits(l *limits) (problem, bool) {
	it := &r.item
	if len(it.users) == 1 {
		return problem{}, true
	}
	each := len(it.Payload) + len(it.Type) + len(it.Conversation) + len(it.Device) + codec.MessageIDBytesMax
	n := int64(each) * int64(len(it.users))
	if n > l.copies {
		return problem{code: codeTooManyItems, field: "users", text: "users times payload comes to more than " +
			strconv.FormatInt(l.copies, 10) + " bytes: name fewer users at a time, with the same message_id"}, false
	}
	if !l.memory.take(n) {
		return problem{code: codec.ResultOverloaded.String(), text: overloadText}, false
	}
	r.copies += n
	return problem{}, true
}

// put adds one message a user to the batch, all with the same id: to the dispatcher it is one message with many deliveries. The
// id is made here when the publisher gave none, so that a reply can name it even when the outcome did not arrive in time.
func (r *pushRequest) put(b Batch) {
	it := &r.item
	if len(it.MessageID) == 0 {
		it.MessageID = r.makeID()
	}
	e := entry{messageID: it.MessageID, device: it.Device, userFrom: len(r.users), first: r.added, ttlMs: it.TTLMs, noAck: it.NoAck}
	for _, u := range it.users {
		it.User = u
		b.Add(&it.PublishItem)
	}
	r.users = append(r.users, it.users...)
	r.added += len(it.users)
	e.userTo = len(r.users)
	r.entries = append(r.entries, e)
}

// makeID is 20 characters of base32hex: 100 random bits, no clock in it.
func (r *pushRequest) makeID() []byte {
	const alphabet = "0123456789abcdefghijklmnopqrstuv"
	var random [20]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	from := len(r.ids)
	for _, c := range random {
		r.ids = append(r.ids, alphabet[c&31])
	}
	return r.ids[from:len(r.ids):len(r.ids)]
}

func badJSON(s *scanner) problem { return problem{code: codeBadJSON, text: s.message()} }

func tooManyItems(max int) problem {
	return problem{code: codeTooManyItems, text: "at most " + strconv.Itoa(max) +
		" messages (items times users) in one request: split it, or stream it as application/x-ndjson"}
}

// blank reports whether a line of a stream has nothing but white space; such lines are passed over.
func blank(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 }
