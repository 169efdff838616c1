package ack

// Lookup finds the entry of a request number: for NACK and EXTEND, which name one.
func (t *Table) Lookup(s Session, number uint64) (Handle, Entry, bool) {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil {
		return Handle{}, Entry{}, false
	}
	_, slot, ok := sh.numbers.find(x, number)
	if !ok {
		return Handle{}, Entry{}, false
	}
	e := sh.records.at(slot)
	return Handle{session: s, slot: slot, gen: e.gen}, e.entry(sh.wheel.Armed(slot)), true
}

// Find finds the entry of a message by walking the session: for cancels and operators, who do not know the number.
func (t *Table) Find(s Session, ref Ref) (h Handle, e Entry, ok bool) {
	t.each(s, func(sh *shard, slot uint32, r *record) bool {
		if r.refSeq != ref.Seq || r.refSlot != ref.Slot {
			return true
		}
		h, e, ok = Handle{session: s, slot: slot, gen: r.gen}, r.entry(sh.wheel.Armed(slot)), true
		return false
	})
	return h, e, ok
}

// Parked appends up to limit parked entries of the session in the order of their numbers to dst, for Unpark.
func (t *Table) Parked(s Session, dst []Expired, limit int) []Expired {
	t.each(s, func(sh *shard, slot uint32, r *record) bool {
		if limit <= 0 {
			return false
		}
		if r.state == recordParked {
			dst = append(dst, sh.sight(s.shard, slot, r))
			limit--
		}
		return true
	})
	return dst
}

// Entries appends all entries of the session in the order of their numbers to dst.
func (t *Table) Entries(s Session, dst []Expired) []Expired {
	t.each(s, func(sh *shard, slot uint32, r *record) bool {
		dst = append(dst, sh.sight(s.shard, slot, r))
		return true
	})
	return dst
}

// each calls visit for the entries of a session in the order of their numbers, under the lock, until it returns false.
func (t *Table) each(s Session, visit func(sh *shard, slot uint32, r *record) bool) {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil {
		return
	}
	for k := range int(x.length) {
		slot := slotOf(*sh.numbers.at(x, k))
		if slot != slotNone && !visit(sh, slot, sh.records.at(slot)) {
			return
		}
	}
}

// Room is what may still join the window, by count and bytes; nothing when the session is not open.
func (t *Table) Room(s Session) (msgs, bytes int) {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil {
		return 0, 0
	}
	return max(int(x.msgsMax)-int(x.inFlight), 0), max(int(x.bytesMax)-int(x.bytes), 0)
}

// State is the state of a session.
type State struct {
	InFlight      int // in the window
	Parked        int
	BytesInFlight int
	LastAckMs     int64  // 0: no ACK yet
	NumberLast    uint64 // the highest request number given out; 0: none
	Window        Window
}

// State returns the state of a session; ok is false when it is not open.
func (t *Table) State(s Session) (st State, ok bool) {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil {
		return State{}, false
	}
	return State{
		InFlight: int(x.inFlight), Parked: int(x.parked), BytesInFlight: int(x.bytes), LastAckMs: x.lastAckMs,
		NumberLast: x.numberNext - 1, Window: Window{MsgsMax: int(x.msgsMax), BytesMax: int(x.bytesMax)},
	}, true
}

// Stats are gauges, and counts that only rise.
type Stats struct {
	Sessions int
	Entries  int // parked ones too
	Parked   int
	Resend   int              // in the resend path
	ByStatus [StatusCount]int // entries by the caller's status

	Late          uint64 // request numbers confirmed after they had left the table
	Never         uint64 // ACKs refused because they name a number never given out
	ParkRemoved   uint64 // entries removed because a user had UserParkedMax parked ones
	ResendRefused uint64 // entries refused the resend path because a user had UserResendMax in it
	WindowFull    uint64
	TableFull     uint64
}

// Stats adds up the shards, one short lock after the other: the sum is of no single instant.
func (t *Table) Stats() Stats {
	var total Stats
	for i := range t.shards {
		t.shards[i].addTo(&total)
	}
	return total
}

func (sh *shard) addTo(total *Stats) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	total.Sessions += sh.sessions.count()
	total.Entries += sh.records.used
	total.Parked += sh.parked
	total.Resend += sh.resend
	for status, n := range sh.byStatus {
		total.ByStatus[status] += n
	}
	total.Late += sh.counts.late
	total.Never += sh.counts.never
	total.ParkRemoved += sh.counts.parkRemoved
	total.ResendRefused += sh.counts.resendRefused
	total.WindowFull += sh.counts.windowFull
	total.TableFull += sh.counts.tableFull
}
