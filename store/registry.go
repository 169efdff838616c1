package store

import (
	"errors"
	"fmt"
	"hash/maphash"

	"holdfast/codec"
	"holdfast/delivery"
)

// registry is who can be sent to: users, their queues, and the names. Guarded by Local.mu. Numbers start at 1; 0 is nobody.
type registry struct {
	seed      maphash.Seed
	byName    table       // numbers by the hash of their names: a map would keep every name's address and length once more
	names     []nameEntry // by number
	freeNames []uint32

	queues     []queue
	freeQueues []uint32
	used       int // queues not gone
	changed    []byte
	sweepAt    uint32
}

// nameEntry is one user or device name: what stands together is looked at together.
type nameEntry struct {
	text  string
	uses  uint32 // by queues and remembered ends
	first uint32 // first queue of the user with this name
}

// queue is one (user, device).
type queue struct {
	user, device uint32 // name numbers; device 0: the default queue
	next         uint32 // the user's next queue
	messages     uint32
	letters      uint32 // dead letters that came from it
	bytes        int64  // as stored
	seenMs       int64  // of the default queue: when a push was last sent there
	notedMs      int64  // seenMs as the devices file has it
	head, tail   [3]uint32
	heir         bool // took over the default queue: messages stored for device "" are its own
	gone         bool // forgotten; its names stay until its dead letters are gone, too
	reuse        bool // and nobody can know the number any more: it may be given again
}

func newRegistry() registry {
	return registry{seed: maphash.MakeSeed(), names: make([]nameEntry, 1), queues: make([]queue, 1)}
}

// homeOf is where byName has a number.
func (r *registry) homeOf(number uint32) uint64 { return maphash.String(r.seed, r.names[number].text) }

// number returns the number of a name, 0 when it has none.
func (r *registry) number(name []byte) (number uint32) {
	if len(name) == 0 {
		return 0
	}
	r.byName.each(maphash.Bytes(r.seed, name), func(n uint32) bool {
		if r.names[n].text != string(name) {
			return false
		}
		number = n
		return true
	})
	return number
}

// name returns the number of a name, a new one if need be. Whoever keeps it calls use before anybody may call unuse.
func (r *registry) name(b []byte) uint32 {
	if len(b) == 0 {
		return 0
	}
	n := r.number(b)
	if n != 0 {
		return n
	}
	s := string(b)
	if k := len(r.freeNames); k > 0 {
		n, r.freeNames = r.freeNames[k-1], r.freeNames[:k-1]
		r.names[n].text = s
	} else {
		n = uint32(len(r.names))
		r.names = append(r.names, nameEntry{text: s})
	}
	if r.byName.home == nil {
		r.byName.home = r.homeOf
	}
	r.byName.insert(n)
	return n
}

func (r *registry) use(user, device uint32) {
	r.names[user].uses++
	r.names[device].uses++
}

// unuse undoes one use; a name that nobody uses is forgotten, or those who come once would fill the memory.
func (r *registry) unuse(user, device uint32) {
	for _, n := range [2]uint32{user, device} {
		if r.names[n].uses--; r.names[n].uses == 0 && n != 0 {
			r.byName.remove(n)
			r.names[n].text = ""
			r.freeNames = append(r.freeNames, n)
		}
	}
}

// find returns the queue of (user, device), 0 when there is none.
func (r *registry) find(user, device uint32) uint32 {
	for q := r.names[user].first; q != 0; q = r.queues[q].next {
		if r.queues[q].device == device {
			return q
		}
	}
	return 0
}

func (r *registry) add(user, device uint32) uint32 {
	d := queue{user: user, device: device, next: r.names[user].first}
	var q uint32
	if k := len(r.freeQueues); k > 0 {
		q, r.freeQueues = r.freeQueues[k-1], r.freeQueues[:k-1]
		r.queues[q] = d
	} else {
		q = uint32(len(r.queues))
		r.queues = append(r.queues, d)
	}
	r.use(user, device)
	r.names[user].first = q
	r.used++
	return q
}

// letter counts a dead letter of q in (1) or out (-1).
func (r *registry) letter(q uint32, by int) {
	d := &r.queues[q]
	d.letters += uint32(by)
	if d.gone {
		r.release(q)
	}
}

// release gives up the names of a forgotten queue once no dead letter needs them, and its number where that is safe.
func (r *registry) release(q uint32) {
	d := &r.queues[q]
	if d.letters > 0 {
		return
	}
	r.unuse(d.user, d.device)
	d.user, d.device = 0, 0
	if d.reuse {
		r.freeQueues = append(r.freeQueues, q)
	}
}

// forget takes an empty queue out of its user's list; release follows.
func (r *registry) forget(q uint32) {
	at := &r.names[r.queues[q].user].first
	for *at != q {
		at = &r.queues[*at].next
	}
	*at = r.queues[q].next
	r.queues[q].gone = true
	r.used--
}

// note remembers for the devices file that q was seen, taken over or forgotten.
func (r *registry) note(q uint32) {
	d := &r.queues[q]
	d.notedMs = d.seenMs
	r.changed = appendDevice(r.changed, r.names[d.user].text, r.names[d.device].text, d)
}

// seen moves the time of q forward; the file hears of it once an hour.
func (r *registry) seen(q uint32, nowMs int64) {
	const hourMs = 3_600_000
	d := &r.queues[q]
	d.seenMs = max(d.seenMs, nowMs)
	if d.device != 0 && d.seenMs-d.notedMs >= hourMs {
		r.note(q)
	}
}

// Claim implements delivery.Queues. It may be repeated while a device stays connected, so that it counts as seen; an End with
// StatusAcked does the same.
func (l *Local) Claim(user, device []byte, nowMs int64) (delivery.QueueID, error) {
	if len(user) == 0 || len(user) > codec.UserBytesMax || len(device) == 0 || len(device) > codec.DeviceBytesMax {
		return 0, errors.New("store: a name is empty or too long")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.reg
	// Names are remembered only once the claim is granted, or refused ones would fill the memory.
	u, d := r.number(user), r.number(device)
	var q, spare uint32
	if u != 0 {
		spare = r.find(u, 0)
	}
	if u != 0 && d != 0 {
		q = r.find(u, d)
	}
	if q == 0 {
		if r.devices(u) >= l.cfg.DevicesPerUserMax {
			return 0, fmt.Errorf("store: %w: %d", delivery.ErrTooManyDevices, l.cfg.DevicesPerUserMax)
		}
		if spare == 0 && r.used >= l.cfg.QueuesMax {
			return 0, fmt.Errorf("store: %w: %d", delivery.ErrTooManyQueues, l.cfg.QueuesMax)
		}
		u, d = r.name(user), r.name(device)
		if spare != 0 {
			// The common first login: the queue gets the device's name and nothing moves.
			q, spare = spare, 0
			r.queues[q].device, r.queues[q].heir = d, true
			r.names[d].uses++
		} else {
			q = r.add(u, d)
		}
		r.queues[q].seenMs = nowMs
		r.note(q)
	}
	if spare != 0 {
		l.adopt(q, spare)
	}
	r.seen(q, nowMs)
	l.wakeLazy()
	return delivery.QueueID(q), nil
}

func (r *registry) devices(user uint32) (n int) {
	for q := r.names[user].first; q != 0; q = r.queues[q].next {
		if r.queues[q].device != 0 {
			n++
		}
	}
	return n
}

// adopt merges the default queue, made while every device was away too long, into the queue of one that came back.
func (l *Local) adopt(q, spare uint32) {
	r := &l.reg
	to, from := &r.queues[q], &r.queues[spare]
	for class := range to.head {
		var moved []uint32
		for slot := from.head[class]; slot != 0; slot = l.slab.at(slot).next {
			moved = append(moved, slot)
		}
		from.head[class], from.tail[class] = 0, 0
		for _, slot := range moved {
			l.slab.at(slot).queue = q
			l.link(to, slot, class)
		}
	}
	to.messages += from.messages
	to.bytes += from.bytes
	to.heir = true
	from.messages, from.bytes = 0, 0
	r.forget(spare)
	r.release(spare)
	r.note(q)
}

// link puts a slot into its place by Seq; that is the tail but for a merge.
func (l *Local) link(q *queue, slot uint32, class int) {
	e := l.slab.at(slot)
	after := q.tail[class]
	for after != 0 && l.slab.at(after).seq > e.seq {
		after = l.slab.at(after).prev
	}
	e.prev = after
	if after == 0 {
		e.next = q.head[class]
		q.head[class] = slot
	} else {
		a := l.slab.at(after)
		e.next = a.next
		a.next = slot
	}
	if e.next == 0 {
		q.tail[class] = slot
	} else {
		l.slab.at(e.next).prev = slot
	}
}

func (l *Local) unlink(q *queue, e *entry, class int) {
	if e.prev == 0 {
		q.head[class] = e.next
	} else {
		l.slab.at(e.prev).next = e.next
	}
	if e.next == 0 {
		q.tail[class] = e.prev
	} else {
		l.slab.at(e.next).prev = e.prev
	}
	e.next, e.prev = 0, 0
}

// Targets implements delivery.Queues.
func (l *Local) Targets(dst []delivery.QueueID, user, device, messageID []byte, nowMs int64) (targets []delivery.QueueID, duplicate bool, res codec.Result) {
	switch {
	case len(user) == 0 || len(user) > codec.UserBytesMax:
		return dst, false, codec.ResultBadUser
	case len(device) > codec.DeviceBytesMax:
		return dst, false, codec.ResultBadDevice
	case len(messageID) > codec.MessageIDBytesMax:
		return dst, false, codec.ResultBadMessageID
	}
	mid := l.hash(messageID, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.reg.number(user); u != 0 && len(messageID) > 0 && l.known(u, mid, nowMs) {
		if targets = l.missing(dst, user, device, u, mid, nowMs); len(targets) > len(dst) {
			return targets, false, codec.ResultAccepted
		}
		l.count.duplicates++
		return dst, true, codec.ResultDuplicate
	}
	targets, res = l.route(dst, user, device, nowMs)
	return targets, false, res
}

// route appends the queues a new message goes to. Called with the lock held.
func (l *Local) route(dst []delivery.QueueID, user, device []byte, nowMs int64) ([]delivery.QueueID, codec.Result) {
	r := &l.reg
	u := r.number(user)
	staleMs := nowMs - l.cfg.DeviceRetention.Milliseconds()
	if len(device) > 0 {
		if d := r.number(device); u != 0 && d != 0 {
			if q := r.find(u, d); q != 0 && r.queues[q].seenMs > staleMs {
				return append(dst, delivery.QueueID(q)), codec.ResultAccepted
			}
		}
		return dst, codec.ResultUnknownDevice
	}
	targets, spare := dst, uint32(0)
	if u != 0 {
		for q := r.names[u].first; q != 0; q = r.queues[q].next {
			if d := &r.queues[q]; d.device == 0 {
				spare = q
			} else if d.seenMs > staleMs {
				targets = append(targets, delivery.QueueID(q))
			}
		}
	}
	if len(targets) > len(dst) {
		return targets, codec.ResultAccepted
	}
	if spare == 0 {
		if r.used >= l.cfg.QueuesMax {
			return dst, codec.ResultStorageFull
		}
		spare = r.add(r.name(user), 0)
	}
	r.queues[spare].seenMs = nowMs
	return append(targets, delivery.QueueID(spare)), codec.ResultAccepted
}

// sweepDevices looks at some queues for devices unseen too long: what they left goes to the dead letters, then they are forgotten. So are
// default queues in which nothing waits any more.
// It stops when told is full and reports whether there may be more to do at once. Called with the lock held.
func (l *Local) sweepDevices(nowMs int64, told *notices) (more bool) {
	const queuesPerCall, endsPerCall = 4096, 256
	const idleMs = 3_600_000 // far longer than anybody takes from Targets to Append
	r := &l.reg
	staleMs := nowMs - l.cfg.DeviceRetention.Milliseconds()
	ended := 0
	for range min(queuesPerCall, len(r.queues)) {
		if r.sweepAt++; int(r.sweepAt) >= len(r.queues) {
			r.sweepAt = 1
		}
		if int(r.sweepAt) >= len(r.queues) {
			return false
		}
		d := &r.queues[r.sweepAt]
		switch {
		case d.gone:
			continue
		case d.device == 0:
			if d.messages == 0 && d.seenMs < nowMs-idleMs {
				r.forget(r.sweepAt)
				d.reuse = true // it was never claimed, and who pushes to it asks Targets each time
				r.release(r.sweepAt)
			}
			continue
		case d.seenMs > staleMs:
			continue
		}
		for class := range d.head {
			for d.head[class] != 0 {
				if ended == endsPerCall || told.full() {
					r.sweepAt--
					return true
				}
				slot := d.head[class]
				l.end(delivery.Ending{Ref: l.slab.at(slot).ref(slot), Status: delivery.StatusDead, Reason: delivery.ReasonDeviceGone,
					Attempts: l.slab.at(slot).attempts}, nowMs, told)
				ended++
			}
		}
		if d.messages == 0 {
			r.forget(r.sweepAt)
			r.note(r.sweepAt)
			r.release(r.sweepAt)
			l.count.devicesForgotten++
		}
	}
	return false
}
