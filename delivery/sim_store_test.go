package delivery

import (
	"math/rand/v2"
	"slices"

	"holdfast/codec"
)

// simStore is the fake store with faults, and the place where the ledger sees what is appended and what ends. What is not durable
// yet (appends, ends, notes) is lost in a crash, all or some of it.
type simStore struct {
	*fakeStore
	w      *sim
	notes  map[uint64]simNote // by Seq: what is durable of a message noted since the last commit
	elided map[uint64]bool    // by Seq: ended before it was durable, so nothing of it may be on disk
	due    bool               // a commit is planned
}

type simNote struct {
	attempts uint16
	sent     bool
}

func newSimStore(w *sim) *simStore {
	s := &simStore{fakeStore: newFakeStore(), w: w}
	s.manualSync = true
	s.queueMax = pick(w, 0, 0, 5, 100)
	s.committed()
	return s
}

func (s *simStore) committed() {
	s.notes, s.elided = make(map[uint64]simNote), make(map[uint64]bool)
}

// touched plans the next commit.
func (s *simStore) touched() {
	if s.due {
		return
	}
	s.due = true
	s.w.after(s.w.between(s.w.plan.syncMs/2, 2*s.w.plan.syncMs), func() {
		s.due = false
		s.commit()
	})
}

// commit makes everything durable and answers who waits.
func (s *simStore) commit() {
	s.committed()
	s.sync()
}

func (s *simStore) Claim(user, device []byte, nowMs int64) (QueueID, error) {
	if s.w.doing == "refresh" { // for all links, in no order: no luck here
		return s.fakeStore.Claim(user, device, nowMs)
	}
	s.w.elsewhere()
	if !s.w.calm && s.w.chance(s.w.plan.failClaim) {
		return 0, errFakeStore
	}
	return s.fakeStore.Claim(user, device, nowMs)
}

// Targets is the fake store's, and completes what a crash has cut between two devices, as the port demands of a repeat.
func (s *simStore) Targets(dst []QueueID, user, device, messageID []byte, nowMs int64) ([]QueueID, bool, codec.Result) {
	s.w.elsewhere()
	targets, duplicate, r := s.fakeStore.Targets(dst, user, device, messageID, nowMs)
	if !duplicate {
		return targets, duplicate, r
	}
	for _, d := range s.w.ledger.byUser[userKey(user, messageID)] {
		if !slices.Contains(targets, d.queue) && s.w.ledger.torn(d) && (len(device) == 0 || s.queues[d.queue].device == string(device)) {
			targets = append(targets, d.queue)
		}
	}
	return targets, len(targets) == len(dst), codec.ResultAccepted
}

func (s *simStore) Append(q QueueID, command []byte, m Meta, w Waiter, i int) (Ref, codec.Result) {
	s.w.elsewhere()
	if !s.w.calm && s.w.chance(s.w.plan.refuse) {
		return Ref{}, pick(s.w, codec.ResultQueueFull, codec.ResultStorageFull, codec.ResultUnavailable)
	}
	ref, r := s.fakeStore.Append(q, command, m, w, i)
	s.touched()
	if r == codec.ResultAccepted {
		s.w.ledger.appended(q, ref, command, w.(*Batch), i)
	}
	s.w.elsewhere()
	return ref, r
}

func (s *simStore) Next(b *Buffer, q QueueID, p codec.Priority, after uint64, n, maxBytes int) ([]Item, error) {
	s.w.elsewhere()
	if !s.w.calm && s.w.chance(s.w.plan.failRead) {
		return nil, errFakeStore
	}
	return s.fakeStore.Next(b, q, p, after, n, maxBytes)
}

func (s *simStore) Read(b *Buffer, ref Ref) (Item, bool, error) {
	s.w.elsewhere()
	if !s.w.calm && s.w.chance(s.w.plan.failRead) {
		return Item{}, false, errFakeStore
	}
	item, ok, err := s.fakeStore.Read(b, ref)
	s.w.elsewhere()
	return item, ok, err
}

func (s *simStore) Note(ref Ref, attempts uint16, sent bool) {
	s.w.elsewhere()
	if it := s.at(ref); it != nil {
		if _, noted := s.notes[ref.Seq]; !noted {
			s.notes[ref.Seq] = simNote{it.attempts, it.sent}
		}
		s.w.ledger.noted(ref, attempts)
		s.touched()
	}
	s.fakeStore.Note(ref, attempts, sent)
}

func (s *simStore) End(ends []Ending, nowMs int64) int {
	for i := range ends {
		if it := s.at(ends[i].Ref); it != nil && !it.durable {
			s.elided[ends[i].Ref.Seq] = true
		}
		s.w.ledger.ending(&ends[i], s.at(ends[i].Ref) != nil)
	}
	s.touched()
	return s.fakeStore.End(ends, nowMs)
}

// safe reports whether a crash now would not lose the message: it is durable, or has ended.
func (s *simStore) safe(ref Ref) bool {
	it := s.at(ref)
	return it == nil || it.durable
}

// keepSome makes part of what is waiting durable and tells nobody: the disk had it when the process died.
func (s *simStore) keepSome(r *rand.Rand) {
	for _, slot := range s.waiting[:r.IntN(len(s.waiting)+1)] {
		if it := &s.items[slot]; it.used {
			it.durable = true
		}
	}
	s.undo = s.undo[r.IntN(len(s.undo)+1):]
	if r.IntN(2) == 0 {
		clear(s.notes)
	}
}

// restart is what a new process finds.
func (s *simStore) restart() {
	notes, elided, old := s.notes, s.elided, s.fakeStore
	s.fakeStore = old.crash()
	for i := range s.items {
		if n, ok := notes[s.items[i].ref.Seq]; ok && s.items[i].used {
			s.items[i].attempts, s.items[i].sent = n.attempts, n.sent
		}
	}
	s.ended = slices.DeleteFunc(s.ended, func(r Record) bool {
		gone := elided[r.Ref.Seq]
		if gone {
			s.counts[r.Status]--
		}
		return gone
	})
	clear(s.dedup)
	for _, r := range s.ended {
		s.dedup[r.User+"\x00"+r.MessageID] = true
	}
	for i := range s.items {
		if it := &s.items[i]; it.used {
			s.dedup[s.queues[it.queue].user+"\x00"+string(it.messageID)] = true
		}
	}
	s.committed()
	s.w.ledger.crashed(s, elided)
}
