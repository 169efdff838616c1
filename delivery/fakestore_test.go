package delivery

import (
	"errors"
	"slices"
	"sync"

	"holdfast/codec"
)

// fakeStore is a Store in memory that keeps what the ports promise, and fails when it is told to. The tests of this package and
// the simulation share it. Durability is modelled: with manualSync, what is appended, ended or noted is only safe after sync, and
// crash gives what a restart would find.
type fakeStore struct {
	// Set before use.
	manualSync  bool                                 // Stored is told by sync, not at once
	noHistory   bool                                 // neither dedup marks nor ended records: nothing is allocated in steady state
	queueMax    int                                  // messages in one queue, 0: no limit
	refuse      func(q QueueID, m Meta) codec.Result // nil: nothing is refused
	failReads   bool                                 // Next and Read fail
	failClaims  bool
	knownForMs  int64 // devices not seen for so long get no more pushes; 0: for ever
	sweepsGiven int   // SweepExpired calls

	mu      sync.Mutex
	seq     uint64
	queues  []fakeQueue // by QueueID
	items   []fakeItem  // by Slot
	free    []uint32
	waiting []uint32 // slots not durable yet
	joined  []fakeJoin
	undo    []fakeUndo
	dedup   map[string]bool // user + NUL + message id
	ended   []Record
	live    int
	counts  map[Status]int
}

type fakeQueue struct {
	user, device string
	seenMs       int64
	classes      [3][]uint32 // slots, by rising Seq
}

type fakeItem struct {
	ref       Ref
	queue     QueueID
	used      bool
	durable   bool
	waiter    Waiter
	index     int // for waiter
	messageID []byte
	command   []byte
	meta      Meta
	attempts  uint16
	sent      bool
}

// fakeJoin is a duplicate that waits for its first copy.
type fakeJoin struct {
	w Waiter
	i int
}

// fakeUndo is an end that is not durable yet: after a crash the item is back.
type fakeUndo struct {
	item  fakeItem
	ended Record
}

var errFakeStore = errors.New("the fake store was told to fail")

func newFakeStore() *fakeStore {
	return &fakeStore{dedup: make(map[string]bool), counts: make(map[Status]int)}
}

func (s *fakeStore) queue(user, device string) (QueueID, bool) {
	for i := range s.queues {
		if s.queues[i].user == user && s.queues[i].device == device {
			return QueueID(i), true
		}
	}
	return 0, false
}

func (s *fakeStore) Claim(user, device []byte, nowMs int64) (QueueID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failClaims {
		return 0, errFakeStore
	}
	q, ok := s.queue(string(user), string(device))
	if !ok {
		q, ok = s.queue(string(user), "")
		if ok {
			s.queues[q].device = string(device)
		}
	}
	if !ok {
		q = QueueID(len(s.queues))
		s.queues = append(s.queues, fakeQueue{user: string(user), device: string(device)})
	}
	s.queues[q].seenMs = nowMs
	return q, nil
}

func (s *fakeStore) Targets(dst []QueueID, user, device, messageID []byte, nowMs int64) ([]QueueID, bool, codec.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.noHistory && s.dedup[string(user)+"\x00"+string(messageID)] {
		return dst, true, codec.ResultAccepted
	}
	n := len(dst)
	for i := range s.queues {
		q := &s.queues[i]
		if q.user != string(user) || len(device) > 0 && q.device != string(device) {
			continue
		}
		if s.knownForMs > 0 && q.device != "" && nowMs-q.seenMs > s.knownForMs {
			continue
		}
		dst = append(dst, QueueID(i))
	}
	switch {
	case len(dst) > n:
		return dst, false, codec.ResultAccepted
	case len(device) > 0:
		return dst, false, codec.ResultUnknownDevice
	default:
		s.queues = append(s.queues, fakeQueue{user: string(user)})
		return append(dst, QueueID(len(s.queues)-1)), false, codec.ResultAccepted
	}
}

func (s *fakeStore) Join(user, messageID []byte, w Waiter, i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range s.waiting {
		it := &s.items[slot]
		if it.used && !it.durable && string(it.messageID) == string(messageID) && s.queues[it.queue].user == string(user) {
			s.joined = append(s.joined, fakeJoin{w, i})
			return true
		}
	}
	return false
}

func (s *fakeStore) Append(q QueueID, command []byte, m Meta, w Waiter, i int) (Ref, codec.Result) {
	s.mu.Lock()
	if r := s.refusal(q, m); r != codec.ResultAccepted {
		s.mu.Unlock()
		return Ref{}, r
	}
	slot := s.slot()
	s.seq++
	it := &s.items[slot]
	*it = fakeItem{
		ref: Ref{Seq: s.seq, Slot: slot}, queue: q, used: true, durable: !s.manualSync, waiter: w, index: i,
		messageID: append(it.messageID[:0], m.MessageID...), command: append(it.command[:0], command...), meta: m,
	}
	it.meta.MessageID = it.messageID
	list := &s.queues[q].classes[m.Priority]
	*list = append(*list, slot)
	s.live++
	if !s.noHistory {
		s.dedup[s.queues[q].user+"\x00"+string(m.MessageID)] = true
	}
	ref := it.ref
	if s.manualSync {
		s.waiting = append(s.waiting, slot)
	} else {
		it.waiter = nil
	}
	s.mu.Unlock()
	if !s.manualSync {
		w.Stored(i, codec.ResultAccepted)
	}
	return ref, codec.ResultAccepted
}

func (s *fakeStore) refusal(q QueueID, m Meta) codec.Result {
	if s.refuse != nil {
		if r := s.refuse(q, m); r != codec.ResultAccepted {
			return r
		}
	}
	if n := s.queueLen(q); s.queueMax > 0 && n >= s.queueMax {
		return codec.ResultQueueFull
	}
	return codec.ResultAccepted
}

func (s *fakeStore) queueLen(q QueueID) int {
	n := 0
	for _, list := range s.queues[q].classes {
		n += len(list)
	}
	return n
}

func (s *fakeStore) slot() uint32 {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.items = append(s.items, fakeItem{})
	return uint32(len(s.items) - 1)
}

func (s *fakeStore) Next(b *Buffer, q QueueID, p codec.Priority, after uint64, n, maxBytes int) ([]Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failReads {
		return nil, errFakeStore
	}
	b.Items, b.Bytes = b.Items[:0], b.Bytes[:0]
	list := s.queues[q].classes[p]
	at, _ := slices.BinarySearchFunc(list, after+1, func(slot uint32, seq uint64) int {
		return int(int64(s.items[slot].ref.Seq) - int64(seq))
	})
	for _, slot := range list[at:] {
		it := &s.items[slot]
		if len(b.Items) == n || len(b.Items) > 0 && len(b.Bytes)+len(it.command) > maxBytes {
			break
		}
		s.read(b, it)
	}
	return b.Items, nil
}

func (s *fakeStore) read(b *Buffer, it *fakeItem) Item {
	start := len(b.Bytes)
	b.Bytes = append(b.Bytes, it.command...)
	item := Item{Ref: it.ref, Command: b.Bytes[start:], Attempts: it.attempts, Sent: it.sent}
	b.Items = append(b.Items, item)
	return item
}

func (s *fakeStore) Read(b *Buffer, ref Ref) (Item, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failReads {
		return Item{}, false, errFakeStore
	}
	b.Items, b.Bytes = b.Items[:0], b.Bytes[:0]
	it := s.at(ref)
	if it == nil {
		return Item{}, false, nil
	}
	return s.read(b, it), true, nil
}

func (s *fakeStore) at(ref Ref) *fakeItem {
	if int(ref.Slot) >= len(s.items) || !s.items[ref.Slot].used || s.items[ref.Slot].ref != ref {
		return nil
	}
	return &s.items[ref.Slot]
}

func (s *fakeStore) Note(ref Ref, attempts uint16, sent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it := s.at(ref); it != nil {
		it.attempts, it.sent = attempts, it.sent || sent
	}
}

func (s *fakeStore) End(ends []Ending, nowMs int64) int {
	won := 0
	for i := range ends {
		w, index := s.endOne(&ends[i], nowMs)
		if ends[i].Won {
			won++
		}
		if w != nil { // told outside the lock: the waiter may call anything
			w.Stored(index, codec.ResultAccepted)
		}
	}
	return won
}

func (s *fakeStore) endOne(e *Ending, nowMs int64) (Waiter, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.at(e.Ref)
	e.Won = it != nil
	if it == nil {
		return nil, 0
	}
	if !e.Status.End() {
		panic("fake store: End with " + e.Status.String())
	}
	list := &s.queues[it.queue].classes[it.meta.Priority]
	k := slices.Index(*list, e.Ref.Slot)
	*list = slices.Delete(*list, k, k+1)
	s.counts[e.Status]++
	s.live--
	if !s.noHistory {
		r := s.record(it)
		r.Status, r.Attempts, r.Level, r.Reason, r.EndedMs = e.Status, e.Attempts, e.Level, e.Reason, nowMs
		s.ended = append(s.ended, r)
		if s.manualSync && it.durable {
			kept := *it
			kept.command, kept.messageID = slices.Clone(it.command), slices.Clone(it.messageID)
			s.undo = append(s.undo, fakeUndo{item: kept, ended: r})
		}
	}
	w, index := it.waiter, it.index
	it.used, it.waiter = false, nil
	s.free = append(s.free, e.Ref.Slot)
	return w, index
}

// sync makes everything so far durable and tells the waiters.
func (s *fakeStore) sync() {
	s.mu.Lock()
	type told struct {
		w Waiter
		i int
	}
	var tell []told
	for _, slot := range s.waiting {
		if it := &s.items[slot]; it.used && !it.durable {
			it.durable = true
			tell = append(tell, told{it.waiter, it.index})
			it.waiter = nil
		}
	}
	s.waiting, s.undo = s.waiting[:0], nil
	joined := s.joined
	s.joined = nil
	s.mu.Unlock()
	for _, t := range tell {
		t.w.Stored(t.i, codec.ResultAccepted)
	}
	for _, j := range joined {
		j.w.Stored(j.i, codec.ResultDuplicate)
	}
}

// crash is the store as a restart finds it: without what was not durable, and with the deliveries whose end was not.
func (s *fakeStore) crash() *fakeStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := newFakeStore()
	n.manualSync, n.queueMax, n.knownForMs, n.seq = s.manualSync, s.queueMax, s.knownForMs, s.seq
	for i := range s.queues {
		n.queues = append(n.queues, fakeQueue{user: s.queues[i].user, device: s.queues[i].device, seenMs: s.queues[i].seenMs})
	}
	back := make(map[Ref]bool)
	var items []fakeItem
	for i := range s.undo {
		items = append(items, s.undo[i].item)
		back[s.undo[i].item.ref] = true
	}
	for i := range s.items {
		if s.items[i].used && s.items[i].durable {
			items = append(items, s.items[i])
		}
	}
	slices.SortFunc(items, func(a, b fakeItem) int { return int(int64(a.ref.Seq) - int64(b.ref.Seq)) })
	for _, it := range items {
		n.keep(it)
	}
	for _, r := range s.ended {
		if !back[r.Ref] {
			n.ended = append(n.ended, r)
			n.counts[r.Status]++
			n.dedup[r.User+"\x00"+r.MessageID] = true
		}
	}
	return n
}

// keep puts an item of the old life into the new one, under a new slot.
func (s *fakeStore) keep(it fakeItem) {
	slot := s.slot()
	it.ref.Slot = slot
	it.used, it.durable, it.waiter = true, true, nil
	it.command, it.messageID = slices.Clone(it.command), slices.Clone(it.messageID)
	it.meta.MessageID = it.messageID
	s.items[slot] = it
	list := &s.queues[it.queue].classes[it.meta.Priority]
	*list = append(*list, slot)
	s.dedup[s.queues[it.queue].user+"\x00"+string(it.messageID)] = true
	s.live++
}

func (s *fakeStore) record(it *fakeItem) Record {
	q := &s.queues[it.queue]
	return Record{
		Ref: it.ref, MessageID: string(it.messageID), User: q.user, Device: q.device, Status: StatusOffline,
		Attempts: it.attempts, Sent: it.sent, Priority: it.meta.Priority,
		AcceptedMs: it.meta.AcceptedMs, ExpireAtMs: it.meta.ExpireAtMs, Bytes: len(it.command),
	}
}

func (s *fakeStore) Find(messageID string) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Record
	for i := range s.items {
		if it := &s.items[i]; it.used && string(it.messageID) == messageID {
			found = append(found, s.record(it))
		}
	}
	for _, r := range s.ended {
		if r.MessageID == messageID {
			found = append(found, r)
		}
	}
	return found
}

func (s *fakeStore) Queue(q QueueID) QueueInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &s.queues[q]
	return QueueInfo{ID: q, User: x.user, Device: x.device, SeenMs: x.seenMs, Messages: s.queueLen(q)}
}

func (s *fakeStore) UserQueues(user string) []QueueInfo {
	s.mu.Lock()
	var ids []QueueID
	for i := range s.queues {
		if s.queues[i].user == user {
			ids = append(ids, QueueID(i))
		}
	}
	s.mu.Unlock()
	var list []QueueInfo
	for _, q := range ids {
		list = append(list, s.Queue(q))
	}
	return list
}

func (s *fakeStore) SweepExpired(dst []Ref, nowMs int64, max int) []Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepsGiven++
	n := len(dst)
	for i := range s.items {
		if it := &s.items[i]; it.used && it.meta.ExpireAtMs <= nowMs && len(dst)-n < max {
			dst = append(dst, it.ref)
		}
	}
	return dst
}
