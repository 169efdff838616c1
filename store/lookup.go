package store

import (
	"holdfast/codec"
	"holdfast/delivery"
)

// Find implements delivery.Lookup. It takes the lock in short turns.
func (l *Local) Find(messageID string) []delivery.Record {
	mid := l.hash([]byte(messageID), 0)
	var records []delivery.Record
	var refs []delivery.Ref
	const turn = 32
	for from := uint32(0); from < homeSpread; from += turn {
		l.mu.Lock()
		for i := from; i < from+turn; i++ {
			h := home(mid, i)
			l.index.each(h, func(slot uint32) bool {
				if e := l.slab.at(slot); e.mid == mid && l.reg.queues[e.queue].user%homeSpread == i {
					refs = append(refs, e.ref(slot))
				}
				return false
			})
			l.ended.index.each(h, func(slot uint32) bool {
				if e := l.ended.at(slot - 1); e.mid == mid && e.user%homeSpread == i {
					records = append(records, l.endedRecord(e, messageID))
				}
				return false
			})
		}
		l.mu.Unlock()
	}
	var b delivery.Buffer
	var live []delivery.Record
	for _, ref := range refs {
		if r, _, ok := l.record(&b, ref); ok && r.MessageID == messageID {
			live = append(live, r)
		}
	}
	return append(live, records...)
}

func (l *Local) endedRecord(e *endedEntry, messageID string) delivery.Record {
	return delivery.Record{Ref: delivery.Ref{Seq: e.seq}, MessageID: messageID, User: l.reg.names[e.user].text, Device: l.reg.names[e.device].text,
		Status: e.status, Attempts: e.attempts, Sent: e.attempts > 0 || e.status == delivery.StatusAcked, Level: e.level, Reason: e.reason,
		Priority: e.priority, AcceptedMs: e.acceptedMs, EndedMs: e.endedMs, Bytes: int(e.bytes)}
}

// record reads all that is known of a live or dead delivery, and its command, borrowed from b; ok is false when it is gone.
func (l *Local) record(b *delivery.Buffer, ref delivery.Ref) (r delivery.Record, command []byte, ok bool) {
	l.mu.Lock()
	e := l.slab.live(ref)
	if e == nil || l.closed {
		l.mu.Unlock()
		return r, nil, false
	}
	d := &l.reg.queues[e.queue]
	r = delivery.Record{Ref: ref, User: l.reg.names[d.user].text, Device: l.reg.names[d.device].text, Status: delivery.StatusOffline,
		Attempts: e.attempts, Sent: e.is(flagSent), Priority: codec.Priority(e.class()), Bytes: e.bytes()}
	if e.is(flagDead) {
		r.Status, r.Reason, r.EndedMs = delivery.StatusDead, e.reason(), int64(e.expireS)*1000
	}
	b.Items, b.Bytes = b.Items[:0], b.Bytes[:0]
	var places [1]place
	places[0] = l.place(b, e, ref.Slot)
	l.mu.Unlock()
	if _, err := l.fetch(b, places[:]); err != nil || len(b.Items) == 0 {
		return r, nil, false
	}
	var p put
	parsePut(b.Bytes[places[0].at:], &p)
	r.MessageID, r.AcceptedMs = string(p.message), p.acceptedMs
	if r.Status != delivery.StatusDead {
		r.ExpireAtMs = p.expireMs
	}
	return r, p.command, true
}

// Queue implements delivery.Lookup.
func (l *Local) Queue(q delivery.QueueID) delivery.QueueInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q == 0 || int(q) >= len(l.reg.queues) {
		return delivery.QueueInfo{}
	}
	return l.info(uint32(q), unixMs())
}

// UserQueues implements delivery.Lookup.
func (l *Local) UserQueues(user string) (infos []delivery.QueueInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	nowMs := unixMs()
	u := l.reg.number([]byte(user))
	for q := l.reg.names[u].first; q != 0; q = l.reg.queues[q].next {
		infos = append(infos, l.info(q, nowMs))
	}
	return infos
}

func (l *Local) info(q uint32, nowMs int64) delivery.QueueInfo {
	d := &l.reg.queues[q]
	info := delivery.QueueInfo{ID: delivery.QueueID(q), User: l.reg.names[d.user].text, Device: l.reg.names[d.device].text, Messages: int(d.messages), Bytes: d.bytes}
	if d.device != 0 {
		info.SeenMs = d.seenMs
	}
	for _, slot := range d.head {
		if slot == 0 {
			continue
		}
		if at := l.slab.at(slot).acceptedAt(nowMs); info.OldestMs == 0 || at < info.OldestMs {
			info.OldestMs = at
		}
	}
	return info
}

// SweepExpired implements delivery.Lookup. Each call also sweeps some of the devices that were not seen for too long.
func (l *Local) SweepExpired(dst []delivery.Ref, nowMs int64, most int) []delivery.Ref {
	for range 64 {
		var told notices
		l.mu.Lock()
		more := l.sweepDevices(nowMs, &told)
		l.wakeLazy()
		l.mu.Unlock()
		told.tell()
		if !more {
			break
		}
	}
	nowS := uint32(max(0, nowMs/1000))
	start := len(dst)
	for i := 0; len(dst)-start < most; i++ {
		l.mu.Lock()
		n := len(l.slab.chunks)
		if i >= n {
			l.mu.Unlock()
			break
		}
		if l.sweepAt++; l.sweepAt >= n {
			l.sweepAt = 0
		}
		var done bool
		if dst, done = l.sweepChunk(dst, l.sweepAt, nowS, most-(len(dst)-start)); !done {
			l.sweepAt-- // goes on here, once the caller has ended what it got
		}
		l.mu.Unlock()
	}
	return dst
}

// sweepChunk appends what is over in one chunk; done is false when room ran out.
func (l *Local) sweepChunk(dst []delivery.Ref, i int, nowS uint32, room int) ([]delivery.Ref, bool) {
	c := l.slab.chunks[i]
	if c == nil || c.soonestS > nowS {
		return dst, true
	}
	soonest := noExpiry
	for j := range c.entries {
		e := &c.entries[j]
		if e.seq == 0 || e.is(flagDead) {
			continue
		}
		if soonest = min(soonest, e.expireS); e.expireS > nowS {
			continue
		}
		if room == 0 {
			return dst, false
		}
		dst = append(dst, e.ref(uint32(i)<<chunkShift|uint32(j)))
		room--
	}
	c.soonestS = soonest
	return dst, true
}
