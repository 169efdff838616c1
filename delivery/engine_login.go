package delivery

import (
	"errors"
	"math"

	"holdfast/ack"
	"holdfast/codec"
	"holdfast/scheduler"
)

// Login opens a link: the device's queue is claimed, a session opened in the table, the WELCOME written. Its backlog is sent from
// the next Turn on; it is live once that is empty. A link of the same device that is still there is replaced first.
func (e *Engine) Login(l *Link, now Now) {
	var old *Link
	if user := e.users[l.user]; user != nil {
		old = user.byDevice(l.device)
	}
	if old != nil && l.left {
		// It was opened before old and is only now read: its client has gone on to old. Were old replaced, a healthy client would
		// be told to stop.
		l.state = linkOver
		l.peer.Close(codec.CodeReplaced, "this connection was closed by its client and the device has another", 0)
		return
	}
	if waitMs := e.admit(l, old, now); waitMs > 0 {
		e.core.count.loginsRefused.Inc()
		l.state = linkOver
		l.peer.Close(codec.CodeOverloaded, "too many logins of this device", waitMs)
		return
	}
	q, err := e.core.store.Claim([]byte(l.user), []byte(l.device), now.WallMs)
	if err != nil {
		e.unclaimed(l, err)
		return
	}
	l.queue = q
	if old != nil {
		e.replace(old, l)
		return
	}
	e.enter(l, now)
}

// unclaimed refuses a login that the store gave no queue. A limit is no fault of the store: a user's devices do not become fewer by
// asking again, so that is final for the client.
func (e *Engine) unclaimed(l *Link, err error) {
	e.core.count.loginsRefused.Inc()
	l.state = linkOver
	switch {
	case errors.Is(err, ErrTooManyDevices):
		l.peer.Close(codec.CodeForbidden, "too many devices of this user", 0)
	case errors.Is(err, ErrTooManyQueues):
		l.peer.Close(codec.CodeOverloaded, "too many devices on this node", loginFullMs)
	default:
		e.core.count.storeErrors.Inc()
		l.peer.Close(codec.CodeUnavailable, "the store does not answer", loginUnavailMs)
	}
}

// replace closes the connection of old. Its heir enters when that has ended (Gone), not before: ACKs that the client sent on the old
// connection may still be on their way to another event loop, and what they confirm must not be sent again.
func (e *Engine) replace(old, heir *Link) {
	e.core.count.takeovers.Inc()
	if waiting := old.heir(); waiting != nil {
		waiting.state = linkOver
		waiting.peer.Close(codec.CodeReplaced, replacedReason, 0)
	}
	old.rare().heir = heir
	old.setHold(holdHeir)
	old.peer.Close(codec.CodeReplaced, replacedReason, 0)
}

const (
	replacedReason = "this device logged in on another connection"
	stoppingReason = "this node is stopping"
)

// enter lets a link in: its queue is claimed and no other link of the device is left.
func (e *Engine) enter(l *Link, now Now) {
	if e.leaving {
		l.state = linkOver
		l.peer.Close(codec.CodeGoingAway, stoppingReason, 0)
		return
	}
	e.open(l, now)
	if !l.peer.Open(l, e.welcome(l, now)) {
		e.core.table.Evict(l.session, e.entries[:0]) // nothing was sent
		l.state = linkOver
		return
	}
	e.file(l)
	e.core.count.logins.Inc()
	e.core.count.online.Add(1)
	e.enqueue(l)
}

// admit takes a login token of the device and returns how long to wait when there is none. The bucket lives as long as the device
// is connected: it is there for two clients that replace each other for ever. It is made at the first takeover, as it would be had it
// been full at the login before: most devices are never taken over.
func (e *Engine) admit(l, old *Link, now Now) (waitMs int64) {
	c := &e.core.config
	if old == nil {
		return 0
	}
	logins := &old.rare().logins
	if *logins == (scheduler.Bucket{}) {
		loginMs := now.MonoMs - (now.WallMs - old.connectedMs)
		*logins = scheduler.NewBucket(c.LoginsPerMinute/60, float64(c.LoginBurst), loginMs)
		logins.Take(loginMs, 1)
	}
	if !logins.Take(now.MonoMs, 1) {
		return max(1, logins.WaitMs(now.MonoMs, 1))
	}
	l.rare().logins = *logins
	return 0
}

// open fills in what holds for this login. State and cursor stand before the first message: everything stored comes again.
func (e *Engine) open(l *Link, now Now) {
	c := &e.core.config
	l.windowMsgs, l.windowBytes = smaller(l.windowMsgs, c.WindowMsgs), smaller(l.windowBytes, c.WindowBytes)
	l.connectedMs = now.WallMs
	for l.sessionID == 0 || e.links[l.sessionID] != nil {
		l.sessionID = e.rand.Uint64()
	}
	l.session = e.core.table.Open(ack.Open{UserHash: l.userHash, Window: ack.Window{MsgsMax: int(l.windowMsgs), BytesMax: int(l.windowBytes)}, Owner: l.sessionID})
	l.state, l.backlog = linkOpen, true
	l.careful = e.streaks[l.queue] >= streakCareful
	l.troubled.Store(l.wantsAcks())
}

// smaller is what the client wished, but not more than the server allows; 0 wishes nothing.
func smaller(wished int32, allowed int) int32 {
	if most := int32(min(allowed, math.MaxInt32)); wished == 0 || wished > most {
		return most
	}
	return wished
}

// welcome encodes the WELCOME of l. The request-id base is random: an id of another session is never a good one here.
func (e *Engine) welcome(l *Link, now Now) []byte {
	w := e.core.welcome(l, now)
	w.SessionID = l.sessionID
	w.RequestIDBase = e.rand.Uint64N(1 << 52)
	w.Backlog = uint64(max(0, e.core.store.Queue(l.queue).Messages))
	e.frame = codec.AppendWelcome(e.frame[:0], &w)
	return e.frame
}

// welcome is what every WELCOME says.
func (c *core) welcome(l *Link, now Now) codec.Welcome {
	return codec.Welcome{
		KeepaliveS:    uint64(l.keepaliveS),
		AckTimeoutMs:  uint64(c.ackTimeoutMs),
		WindowMsgs:    uint64(l.windowMsgs),
		WindowBytes:   uint64(l.windowBytes),
		PublishWindow: uint64(c.config.PublishWindow),
		FrameBytesMax: uint64(c.config.FrameBytesMax),
		ServerTimeMs:  uint64(now.WallMs),
		Node:          []byte(c.config.Node),
		User:          []byte(l.user),
		Device:        []byte(l.device),
	}
}

func (e *Engine) file(l *Link) {
	if first := e.users[l.user]; first != nil {
		l.next, first.next = first.next, l // the key stays the string of the first
	} else {
		e.users[l.user] = l
	}
	e.links[l.sessionID] = l
}

func (e *Engine) unfile(l *Link) {
	delete(e.links, l.sessionID)
	at := e.users[l.user]
	if at == l {
		// The key's string is that of a link which is over: it is put in anew with the string of one that is not.
		delete(e.users, l.user)
		if l.next != nil {
			e.users[l.next.user] = l.next
		}
	} else {
		for at.next != l {
			at = at.next
		}
		at.next = l.next
	}
	l.next = nil
}

// Refresh tells the store that the connected devices are still there: one that stays connected for longer than the retention of
// devices must not be forgotten. Every hour or so.
func (e *Engine) Refresh(now Now) {
	for _, l := range e.links {
		if _, err := e.core.store.Claim([]byte(l.user), []byte(l.device), now.WallMs); err != nil {
			e.core.count.storeErrors.Inc()
		}
	}
}

// Gone follows the end of a connection. Its heir, if it was replaced, enters now.
func (e *Engine) Gone(l *Link, now Now) {
	if l.state != linkOpen {
		return
	}
	e.retire(l, now)
	if heir := l.heir(); heir != nil {
		l.seldom.heir = nil
		e.enter(heir, now)
	}
}

// retire ends a link: what was in flight is the store's again, in its old place. A lost connection is no attempt, for the client
// may have seen nothing; but a message must not go round for ever either, so an attempt is counted
//   - for a message the client skipped: it confirmed later ones on this connection, and not this;
//   - for the only message in flight on a connection that never confirmed any and that we did not end ourselves (a takeover, a
//     drain, a stuck socket): it may be what the client dies of.
//
// Sessions that end with something in flight and without any ACK make the next login careful, one message at a time until the
// first ACK. So a message that kills its client is soon alone, and its neighbours stay uncounted.
func (e *Engine) retire(l *Link, now Now) {
	state, _ := e.core.table.State(l.session)
	entries := e.core.table.Evict(l.session, e.entries[:0])
	e.entries = entries
	silent := state.LastAckMs == 0
	alone := silent && state.InFlight == 1 && l.hold&holdAll == 0
	confirmedMax := l.ackedMax.Load()
	for i := range entries {
		entry := &entries[i]
		ref, attempts := toRef(entry.Ref), entry.Attempts
		open := Status(entry.Status) == StatusSent || Status(entry.Status) == StatusTimeout
		if open && (alone || entry.Number < confirmedMax) {
			attempts = plusOne(attempts)
		}
		e.core.store.Note(ref, attempts, true)
		if int(attempts) >= e.core.config.LifeAttemptsMax {
			e.core.endOne(Ending{Ref: ref, Status: StatusDead, Attempts: attempts, Reason: ReasonAttempts}, now)
		}
	}
	e.remember(l.queue, silent && len(entries) > 0)
	l.state, l.backlog, l.resume = linkOver, false, false
	if l.seldom != nil {
		l.seldom.delayed = nil
	}
	e.unfile(l)
	e.core.count.online.Add(-1)
}

// remember keeps the queue's streak of sessions without an ACK. Bounded: a lane forgets rather than grows.
func (e *Engine) remember(q QueueID, silent bool) {
	switch streak := e.streaks[q]; {
	case !silent:
		delete(e.streaks, q)
	case streak == 0 && len(e.streaks) >= streaksMax:
	default:
		e.streaks[q] = min(streak+1, streakCareful)
	}
}
