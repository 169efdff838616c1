package ack

import (
	"sync"
	"sync/atomic"

	"holdfast/scheduler"
)

// Shards is the number of independently locked parts of a Table.
const Shards = 64

// StatusCount bounds the caller's status values: they are counted by value.
const StatusCount = 16

// Limits that the layout sets.
const (
	WindowMsgsLimit = 4096      // largest window of a session
	numberLast      = 1<<42 - 1 // largest request number of a session: half a year at 200,000 a second
	slotNone        = 1<<22 - 1 // slots of a shard are below
)

// Config holds the limits of a Table. A zero field means its default.
type Config struct {
	// UserResendMax bounds the entries of one user, over all sessions, that are sent again while he is connected. What
	// goes beyond waits in the store for the next login. Default 200.
	UserResendMax int
	// UserParkedMax bounds the parked entries of one user, which are kept only so that a late ACK finds them by number.
	// Default 200, at most 2048.
	UserParkedMax int
	// ShardEntriesMax bounds the entries of one shard. Default and at most 4,194,303 (about 400 MB).
	ShardEntriesMax int
}

func (c Config) withDefaults() Config {
	if c.UserResendMax <= 0 {
		c.UserResendMax = 200
	}
	if c.UserParkedMax <= 0 {
		c.UserParkedMax = 200
	}
	c.UserParkedMax = min(c.UserParkedMax, 2048)
	if c.ShardEntriesMax <= 0 || c.ShardEntriesMax > slotNone {
		c.ShardEntriesMax = slotNone
	}
	return c
}

// Table is the pending table. All methods are safe for concurrent use and block on nothing but one shard's lock.
type Table struct {
	shards [Shards]shard // each guards itself
	turn   atomic.Uint32 // the shard the next Expire starts with
}

// shard is one part of the table. Its methods are called with mu held.
type shard struct {
	mu sync.Mutex

	// Static after construction.
	config Config

	// Guarded by mu.
	records  records
	sessions sessions
	numbers  arena
	wheel    *scheduler.Wheel
	users    map[uint64]userLoad // only users that have entries in the resend path or parked
	due      []uint32            // scratch of Expire

	parked, resend int
	byStatus       [StatusCount]int
	counts         counts

	_ [64]byte // the next shard's lock is not on this one's last cache line
}

// userLoad is what limits by user, not by session, are held against.
type userLoad struct{ resend, parked int32 }

// counts only ever rise.
type counts struct{ late, never, parkRemoved, resendRefused, windowFull, tableFull uint64 }

// NewTable returns an empty table that stands at nowMs.
func NewTable(c Config, nowMs int64) *Table {
	t := &Table{}
	c = c.withDefaults()
	for i := range t.shards {
		t.shards[i].config = c
		t.shards[i].wheel = scheduler.NewWheel(nowMs)
		t.shards[i].users = make(map[uint64]userLoad)
	}
	return t
}

// ShardOf is the shard of a user.
func ShardOf(userHash uint64) int { return int(userHash % Shards) }

// Window is how much a session may have in flight.
type Window struct {
	MsgsMax  int // 1 to WindowMsgsLimit, clamped
	BytesMax int // 1 to 2^31-1, clamped; one message larger than that still goes out alone
}

// Session names one open session of the table. It is a value to copy and compare; the zero Session was never open. What is done
// with a session that was evicted has no effect and says so.
type Session struct {
	shard uint32
	slot  uint32
	gen   uint32
}

// Shard is the shard the session lives in: ShardOf its user's hash.
func (s Session) Shard() int { return int(s.shard) }

// Open says what a new session is.
type Open struct {
	UserHash uint64
	Window   Window
	Owner    uint64 // the caller's own name for it; comes back in Expired
}

// Open opens a session. Its request numbers start at 1.
func (t *Table) Open(o Open) Session {
	number := ShardOf(o.UserHash)
	sh := &t.shards[number]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot := sh.sessions.take()
	x := sh.sessions.at(slot)
	*x = session{gen: x.gen, open: true, userHash: o.UserHash, owner: o.Owner, numberNext: 1, block: blockNone}
	x.setWindow(o.Window)
	return Session{shard: uint32(number), slot: slot, gen: x.gen}
}

// Evict closes a session and appends its entries, the parked ones too, in the order of their request numbers to dst. They are
// the caller's now. An evicted session gives nothing.
func (t *Table) Evict(s Session, dst []Entry) []Entry {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil {
		return dst
	}
	dst, _ = sh.removeRange(x, 0, numberLast, dst)
	if x.inFlight != 0 || x.parked != 0 || x.resend != 0 || x.bytes != 0 {
		panic("ack: an evicted session still counts entries")
	}
	x.open = false
	x.gen++
	sh.sessions.give(s.slot)
	return dst
}

// SetWindow changes the window of an open session; what is in flight stays. wake is as in AckResult.
func (t *Table) SetWindow(s Session, w Window) (wake bool) {
	sh, x := t.lock(s)
	defer sh.mu.Unlock()
	if x == nil {
		return false
	}
	x.setWindow(w)
	return x.wake()
}

// lock locks the shard of s and returns the session, or nil when it is not open (any more). The caller unlocks in any case.
func (t *Table) lock(s Session) (*shard, *session) {
	sh := &t.shards[s.shard%Shards]
	sh.mu.Lock()
	return sh, sh.session(s)
}

func (sh *shard) session(s Session) *session {
	if int(s.slot) >= sh.sessions.high {
		return nil
	}
	x := sh.sessions.at(s.slot)
	if !x.open || x.gen != s.gen {
		return nil
	}
	return x
}
