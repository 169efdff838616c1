package ack

// Expired is an entry as Expire, Parked or Entries saw it, with what is needed to decide about it.
type Expired struct {
	Handle    Handle
	Owner     uint64 // of the session, from Open
	LastAckMs int64  // of the session; 0: none yet
	Entry     Entry
}

// expireStep bounds the timers that are collected in one hold of a shard's lock.
const expireStep = 256

// Expire appends the entries whose timer has fired by nowMs to dst, at most limit of them, and continues with the next shard at the
// next call: a caller that got limit entries calls again. The entries stay in the table without a timer, so that an ACK that
// comes before the caller's decision still wins. Meant for one goroutine; several only share the work.
func (t *Table) Expire(nowMs int64, dst []Expired, limit int) []Expired {
	start := t.turn.Load()
	for n := range uint32(Shards) {
		number := (start + n) % Shards
		dst, limit = t.expireShard(number, nowMs, dst, limit)
		if limit <= 0 {
			t.turn.Store((number + 1) % Shards)
			break
		}
	}
	return dst
}

func (t *Table) expireShard(number uint32, nowMs int64, dst []Expired, limit int) ([]Expired, int) {
	sh := &t.shards[number]
	for behind := true; behind && limit > 0; {
		sh.mu.Lock()
		sh.due = sh.wheel.Advance(nowMs, sh.due[:0], min(limit, expireStep))
		for _, slot := range sh.due {
			e := sh.records.at(slot)
			if e.state != recordWindow {
				panic("ack: the timer of an entry outside the window fired")
			}
			dst = append(dst, sh.sight(number, slot, e))
		}
		limit -= len(sh.due)
		behind = sh.wheel.Behind(nowMs)
		sh.mu.Unlock()
	}
	return dst, limit
}

// sight is what a caller may see of an entry.
func (sh *shard) sight(number, slot uint32, e *record) Expired {
	x := sh.sessions.at(e.session)
	if !x.open {
		panic("ack: an entry outlived its session")
	}
	return Expired{
		Handle: Handle{session: Session{shard: number, slot: e.session, gen: x.gen}, slot: slot, gen: e.gen},
		Owner:  x.owner, LastAckMs: x.lastAckMs, Entry: e.entry(sh.wheel.Armed(slot)),
	}
}
