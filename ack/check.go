package ack

import "fmt"

// Check walks the whole table, shard by shard, and panics with a clear text when something does not hold: a window that counts
// wrong, a number list that is out of order or leads astray, a timer without its entry, a user over his limits. For tests and
// simulations, which call it after their steps.
func (t *Table) Check() {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		sh.check(i)
		sh.mu.Unlock()
	}
}

func (sh *shard) check(number int) {
	sh.wheel.Check()
	users := make(map[uint64]userLoad)
	entries, lists, words, timers := 0, 0, 0, 0
	for slot := range uint32(sh.sessions.high) {
		x := sh.sessions.at(slot)
		if !x.open {
			continue
		}
		if ShardOf(x.userHash) != number {
			panic(fmt.Sprintf("ack: shard %d holds a session of shard %d", number, ShardOf(x.userHash)))
		}
		armed := sh.checkSession(slot, x)
		entries += x.live()
		timers += armed
		if x.block != blockNone {
			lists++
			words += classSmallest << x.class
		}
		u := users[x.userHash]
		u.resend += int32(x.resend)
		u.parked += int32(x.parked)
		users[x.userHash] = u
	}
	if entries != sh.records.used {
		panic(fmt.Sprintf("ack: sessions of shard %d hold %d entries, %d are in use", number, entries, sh.records.used))
	}
	if lists != sh.numbers.used {
		panic(fmt.Sprintf("ack: sessions of shard %d hold %d number lists, %d are in use", number, lists, sh.numbers.used))
	}
	if timers != sh.wheel.Len() {
		panic(fmt.Sprintf("ack: entries of shard %d have %d timers, %d are armed", number, timers, sh.wheel.Len()))
	}
	sh.numbers.check(words)
	sh.checkUsers(users)
	sh.checkFree()
}

func (sh *shard) checkSession(slot uint32, x *session) (armed int) {
	var window, parked, resend, last, bytes uint64
	for k := range int(x.length) {
		w := *sh.numbers.at(x, k)
		if numberOf(w) <= last || numberOf(w) >= x.numberNext {
			panic(fmt.Sprintf("ack: number %d stands behind %d, the next one is %d", numberOf(w), last, x.numberNext))
		}
		last = numberOf(w)
		if slotOf(w) == slotNone {
			if k == 0 || k == int(x.length)-1 {
				panic("ack: a number list begins or ends with a hole")
			}
			continue
		}
		e := sh.records.at(slotOf(w))
		if e.number != last || e.session != slot {
			panic(fmt.Sprintf("ack: number %d of session %d leads to number %d of session %d", last, slot, e.number, e.session))
		}
		switch e.state {
		case recordWindow:
			window++
			bytes += uint64(e.bytes)
		case recordParked:
			parked++
		default:
			panic(fmt.Sprintf("ack: number %d leads to a free entry", last))
		}
		if e.resend {
			resend++
		}
		if sh.wheel.Armed(slotOf(w)) {
			armed++
		}
		if e.state == recordParked && (e.resend || sh.wheel.Armed(slotOf(w))) {
			panic(fmt.Sprintf("ack: number %d is parked with a timer or in the resend path", last))
		}
	}
	if window != uint64(x.inFlight) || parked != uint64(x.parked) || resend != uint64(x.resend) || bytes != uint64(x.bytes) {
		panic(fmt.Sprintf("ack: a session counts %d in flight, %d parked, %d resent, %d bytes; it holds %d, %d, %d, %d",
			x.inFlight, x.parked, x.resend, x.bytes, window, parked, resend, bytes))
	}
	if (x.block == blockNone) != (window+parked == 0) {
		panic("ack: an empty session keeps its number list, or a full one has none")
	}
	return armed
}

func (sh *shard) checkUsers(users map[uint64]userLoad) {
	var total userLoad
	for hash, u := range users {
		if sh.users[hash] != u {
			panic(fmt.Sprintf("ack: a user counts %+v, his sessions hold %+v", sh.users[hash], u))
		}
		if int(u.resend) > sh.config.UserResendMax || int(u.parked) > sh.config.UserParkedMax {
			panic(fmt.Sprintf("ack: a user is over his limits: %+v", u))
		}
		total.resend += u.resend
		total.parked += u.parked
	}
	for hash, u := range sh.users {
		if users[hash] != u || u == (userLoad{}) {
			panic("ack: a user without sessions counts entries")
		}
	}
	if int(total.resend) != sh.resend || int(total.parked) != sh.parked {
		panic(fmt.Sprintf("ack: a shard counts %d in the resend path and %d parked, its users %+v", sh.resend, sh.parked, total))
	}
	byStatus := 0
	for _, n := range sh.byStatus {
		if n < 0 {
			panic("ack: a status is counted below 0")
		}
		byStatus += n
	}
	if byStatus != sh.records.used {
		panic(fmt.Sprintf("ack: statuses count %d entries, %d are in use", byStatus, sh.records.used))
	}
}

func (sh *shard) checkFree() {
	free := 0
	for next := sh.records.free; next != 0; next = sh.records.at(next - 1).session {
		if sh.records.at(next-1).state != recordFree || sh.wheel.Armed(next-1) {
			panic("ack: the free list holds an entry in use or a timer")
		}
		if free++; free > sh.records.high {
			panic("ack: the free list runs in a circle")
		}
	}
	if free+sh.records.used != sh.records.high {
		panic(fmt.Sprintf("ack: %d entries free, %d in use, %d in all", free, sh.records.used, sh.records.high))
	}
}
