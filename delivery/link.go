package delivery

import (
	"math"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"holdfast/ack"
	"holdfast/scheduler"
)

// Now is one reading of both clocks: monotonic for deadlines inside this process, wall time for what outlives it.
type Now struct {
	MonoMs int64 // monotonic, above 0
	WallMs int64 // Unix
}

// LoginRequest is a good login: token checked, names valid.
type LoginRequest struct {
	Peer        Peer
	User        []byte // copied
	Device      []byte // copied
	Publisher   bool   // publishes only: WELCOME, but no queue and no pushes
	KeepaliveS  uint64 // as negotiated
	WindowMsgs  uint64 // the client's wish, 0: the server's; the smaller one holds
	WindowBytes uint64
	Left        bool // the client has already closed its side: it replaces nobody
}

// Link is one login of one device: what Peer.Open gets as attachment. It is opaque outside this package.
type Link struct {
	// Static after construction.
	peer       Peer
	user       string
	device     string
	userHash   uint64
	keepaliveS uint32
	publisher  bool
	left       bool

	// Owned by the lane.
	state   linkState
	hold    hold
	backlog bool // the store has messages behind cursor: new ones join its tail (rule 10)
	queued  bool // waits in Engine.ready for its turn
	tended  bool // is in Engine.tended: Tick looks after it
	resume  bool // parked entries are to be sent again before the backlog
	careful bool // one message at a time until the first ACK, see Engine.retire

	// Set by the lane before Peer.Open, static from then on: the event loop sees the link only through Open.
	queue       QueueID
	session     ack.Session
	windowMsgs  int32 // wished until then
	windowBytes int32
	sessionID   uint64
	connectedMs int64 // Unix

	// Owned by the lane.
	next    *Link     // of the same user
	retryMs int64     // monotonic: not pumped before (paced, store error)
	cursor  [3]uint64 // Ref.Seq of the last message sent, per priority class
	seldom  *seldom   // nil: all zero

	// Shared by the event loop and the lane.
	wakeQueued  atomic.Bool   // an ACK event is on its way to the lane
	drainQueued atomic.Bool   // likewise Drained
	troubled    atomic.Bool   // the lane wants to hear of any ACK: stuck, stalled, parked or careful
	ackedMax    atomic.Uint64 // highest request number confirmed; written by the event loop only
	asking      atomic.Int32  // ACKs by message id that wait for the lane
}

// seldom is the part of a link that a device which is there, alone and well does not need. Most links of a node are idle ones, so the
// size of one is what a connection costs.
type seldom struct {
	heir    *Link            // the newer login of the same device, waiting for this connection's end
	probe   Ref              // while stalled: the one message that is retried
	trialMs int64            // monotonic: while stalled or parked, when one new message may be tried
	trials  uint8            // such tries so far: they back off
	stuckMs int64            // monotonic: stuck since
	checkMs int64            // monotonic: when a stuck link is looked at next
	goneMs  int64            // monotonic: when a draining node closes it
	delayed []delayed        // refused for now by the client, for longer than a window slot is held
	pace    scheduler.Bucket // of the backlog, where devices are paced
	logins  scheduler.Bucket // once the device has been taken over: see Engine.admit
}

// rare is the seldom used part, made when it is first asked for.
func (l *Link) rare() *seldom {
	if l.seldom == nil {
		l.seldom = new(seldom)
	}
	return l.seldom
}

// heir is the login that waits for this connection's end, nil mostly.
func (l *Link) heir() *Link {
	if l.seldom == nil {
		return nil
	}
	return l.seldom.heir
}

// linkState is a link's life.
type linkState uint8

const (
	linkNew  linkState = iota // logging in
	linkOpen                  // gets messages
	linkOver                  // replaced, gone, or never opened
)

// hold says why nothing, or little, is sent on a link.
type hold uint8

const (
	holdOutbox  hold = 1 << iota // the outbox refused a frame; ends with Drained
	holdStuck                    // the peer's TCP took no bytes for an ACK timeout; ends with bytes taken or any ACK
	holdStalled                  // frames are taken but nothing is ACKed; one message is retried; ends with any ACK
	holdParked                   // that one was never ACKed: everything waits; ends with any ACK or the next login
	holdDrain                    // the node is stopping
	holdHeir                     // replaced: the connection is closing, its heir logs in when that is done

	// holdAll are the reasons for sending nothing at all, neither new nor again.
	holdAll = holdOutbox | holdStuck | holdDrain | holdHeir
)

// delayed is a message that comes back to its link later, under the same request number.
type delayed struct {
	ref   Ref
	dueMs int64 // monotonic
}

// newLink is a link that has yet to log in.
func newLink(r LoginRequest) *Link {
	l := &Link{
		peer:       r.Peer,
		user:       string(r.User),
		device:     string(r.Device),
		publisher:  r.Publisher,
		left:       r.Left,
		keepaliveS: uint32(min(r.KeepaliveS, math.MaxUint32)),
		windowMsgs: clampInt(r.WindowMsgs), windowBytes: clampInt(r.WindowBytes),
	}
	l.userHash = xxhash.Sum64(r.User)
	return l
}

func clampInt(v uint64) int32 { return int32(min(v, 1<<30)) }

// User is the user that logged in.
func (l *Link) User() string { return l.user }

// Device is the device that logged in.
func (l *Link) Device() string { return l.device }

// Publisher reports whether the connection publishes only.
func (l *Link) Publisher() bool { return l.publisher }

// setHold adds reasons, clearHold takes them away. The event loop reads troubled after it has taken an ACK, and the lane reads the
// table's last ACK after it has set troubled: so one of the two always sees the other.
func (l *Link) setHold(h hold) {
	l.hold |= h
	l.troubled.Store(l.wantsAcks())
}

func (l *Link) clearHold(h hold) {
	l.hold &^= h
	l.troubled.Store(l.wantsAcks())
}

func (l *Link) wantsAcks() bool {
	return l.careful || l.hold&(holdStuck|holdStalled|holdParked) != 0
}

// resuming reports whether parked entries go before anything new. When the link has stalled or is parked anew, they wait for the next
// ACK, and single tries go on meanwhile.
func (l *Link) resuming() bool { return l.resume && l.hold&(holdStalled|holdParked) == 0 }

// unheld reports whether nothing about the link itself forbids a new message now.
func (l *Link) unheld(nowMs int64) bool {
	switch {
	case l.state != linkOpen || l.resuming() || l.hold&holdAll != 0 || nowMs < l.retryMs:
		return false
	case l.hold&(holdStalled|holdParked) != 0 && nowMs < l.rare().trialMs:
		return false
	default:
		return true
	}
}

// describe is the state operators see.
func (l *Link) describe() string {
	switch {
	case l.hold&holdStuck != 0:
		return "stuck"
	case l.hold&holdParked != 0:
		return "parked"
	case l.hold&holdStalled != 0:
		return "stalled"
	case l.backlog:
		return "backlog"
	default:
		return "live"
	}
}

// The links of a user are chained from the one that Engine.users names. A user that is not connected is the nil *Link.

// byDevice is the link of a device among l and those behind it.
func (l *Link) byDevice(device string) *Link {
	for ; l != nil && l.device != device; l = l.next {
	}
	return l
}

// byQueue is the link of a queue among l and those behind it.
func (l *Link) byQueue(q QueueID) *Link {
	for ; l != nil && l.queue != q; l = l.next {
	}
	return l
}
