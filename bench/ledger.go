package bench

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// mark is what is known of one message; bits.
type mark uint8

const (
	markAccepted   mark = 1 << iota // the server took responsibility
	markRefused                     // it did not
	markReceived                    // a receiver has had it
	markRemembered                  // the receiver wrote it into its memory of ids, which survives its death
)

// ledger holds what was sent to each user and what arrived. Its methods may be called from any goroutine.
type ledger struct {
	// Static after newLedger.
	run   uint64
	first int // number of the first user in stamps and ids; other processes of the generator have those before and after

	accounts []account

	sent, accepted, refused, unanswered atomic.Int64
	received                            atomic.Int64 // first copies
	foreign                             atomic.Int64 // messages of other runs
}

// account is one user's part. Guarded by mu.
type account struct {
	mu      sync.Mutex
	marks   []mark // by number
	highest int    // highest number received, -1: none
	deaths  int    // how often the receiver lost what it had not written down

	copies, doubled, disordered, misdelivered, unknown int
	examples                                           []string // the first few of what must not be
}

const (
	examplesPerUser = 2
	examplesMax     = 5
)

func newLedger(run uint64, users int) *ledger {
	l := &ledger{run: run, accounts: make([]account, users)}
	for i := range l.accounts {
		l.accounts[i].highest = -1
	}
	return l
}

// send opens the next message for a user and returns its number.
func (l *ledger) send(user int) (seq uint32) {
	a := &l.accounts[user]
	a.mu.Lock()
	defer a.mu.Unlock()
	a.marks = append(a.marks, 0)
	l.sent.Add(1)
	return uint32(len(a.marks) - 1)
}

// answer notes what the publisher was told about a message.
func (l *ledger) answer(user int, seq uint32, accepted bool) {
	a := &l.accounts[user]
	a.mu.Lock()
	defer a.mu.Unlock()
	if accepted {
		a.marks[seq] |= markAccepted
		l.accepted.Add(1)
		return
	}
	a.marks[seq] |= markRefused
	l.refused.Add(1)
}

// noAnswer notes that nobody knows: such a message may arrive or not.
func (l *ledger) noAnswer() { l.unanswered.Add(1) }

// receive notes that receiver was handed a message with this stamp. first is false for copies and for what is not of this run.
func (l *ledger) receive(receiver int, s *stamp) (first bool) {
	if s.run != l.run {
		l.foreign.Add(1)
		return false
	}
	a := &l.accounts[receiver]
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case uint64(s.user) != uint64(l.first+receiver):
		a.misdelivered++
		a.example("for user %s at user %s: %s", userName(int(s.user)), userName(l.first+receiver), messageID(s.run, s.user, s.seq))
		return false
	case uint64(s.seq) >= uint64(len(a.marks)):
		a.unknown++
		a.example("never sent: %s", messageID(s.run, s.user, s.seq))
		return false
	case a.marks[s.seq]&markReceived != 0:
		// The receiver may see a message again only if it died before it had written down that it saw it.
		if a.deaths > 0 && a.marks[s.seq]&markRemembered == 0 {
			a.copies++
			return false
		}
		a.doubled++
		a.example("twice: %s", messageID(s.run, s.user, s.seq))
		return false
	}
	a.marks[s.seq] |= markReceived
	l.received.Add(1)
	if int(s.seq) < a.highest {
		a.disordered++
		a.example("after %s: %s", messageID(s.run, s.user, uint32(a.highest)), messageID(s.run, s.user, s.seq))
	}
	a.highest = max(a.highest, int(s.seq))
	return true
}

// remember notes that a receiver wrote an id into the memory that survives it.
func (l *ledger) remember(id string) {
	run, user, seq, ok := parseMessageID(id)
	if !ok || run != l.run || uint64(user) < uint64(l.first) || uint64(user) >= uint64(l.first+len(l.accounts)) {
		return
	}
	a := &l.accounts[int(user)-l.first]
	a.mu.Lock()
	defer a.mu.Unlock()
	if uint64(seq) < uint64(len(a.marks)) {
		a.marks[seq] |= markRemembered
	}
}

// died notes that a receiver lost what it had not written down.
func (l *ledger) died(user int) {
	a := &l.accounts[user]
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deaths++
}

func (a *account) example(format string, args ...any) {
	if len(a.examples) < examplesPerUser {
		a.examples = append(a.examples, fmt.Sprintf(format, args...))
	}
}

// settled reports whether everything sent has its answer and everything accepted was received.
func (l *ledger) settled() bool {
	return l.answered() >= l.sent.Load() && l.received.Load() >= l.accepted.Load()
}

func (l *ledger) answered() int64 { return l.accepted.Load() + l.refused.Load() + l.unanswered.Load() }

// Tally is the sum of a ledger.
type Tally struct {
	Sent       int64 `json:"sent"`
	Accepted   int64 `json:"accepted"`
	Refused    int64 `json:"refused"`
	Unanswered int64 `json:"unanswered"`
	Received   int64 `json:"received"` // first copies
	Copies     int64 `json:"copies"`   // seen again after a death of the receiver: at-least-once, as promised
	Foreign    int64 `json:"foreign"`  // of other runs

	Lost       int64 `json:"lost"` // accepted, never received
	Duplicated int64 `json:"duplicated"`
	Disordered int64 `json:"out_of_order"`
	WrongUser  int64 `json:"wrong_user"`
	Unknown    int64 `json:"unknown"`

	Examples []string `json:"examples,omitempty"`
}

// tally adds everything up. What has not arrived by now counts as lost.
func (l *ledger) tally() Tally {
	t := Tally{
		Accepted: l.accepted.Load(), Refused: l.refused.Load(), Received: l.received.Load(), Foreign: l.foreign.Load(),
	}
	t.Sent = l.sent.Load()
	t.Unanswered = t.Sent - t.Accepted - t.Refused // those without an answer so far too
	for user := range l.accounts {
		a := &l.accounts[user]
		a.mu.Lock()
		for seq, m := range a.marks {
			if m&markAccepted != 0 && m&markReceived == 0 {
				t.Lost++
				a.example("lost: %s", messageID(l.run, uint32(l.first+user), uint32(seq)))
			}
		}
		t.Copies += int64(a.copies)
		t.Duplicated += int64(a.doubled)
		t.Disordered += int64(a.disordered)
		t.WrongUser += int64(a.misdelivered)
		t.Unknown += int64(a.unknown)
		t.Examples = append(t.Examples, a.examples[:min(len(a.examples), examplesMax-len(t.Examples))]...)
		a.mu.Unlock()
	}
	return t
}

// failures names what must not be. lossy: fire and forget, where a message may get lost.
func (t *Tally) failures(lossy bool) []string {
	var failures []string
	for _, x := range []struct {
		n    int64
		text string
		may  bool
	}{
		{t.Lost, "lost", lossy}, {t.Duplicated, "duplicated", false}, {t.Disordered, "out of order", false},
		{t.WrongUser, "at the wrong user", false}, {t.Unknown, "never sent", false},
	} {
		if x.n > 0 && !x.may {
			failures = append(failures, fmt.Sprintf("%d %s", x.n, x.text))
		}
	}
	if len(failures) > 0 {
		failures = append(failures, t.Examples...)
	}
	return failures
}
