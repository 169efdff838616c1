package delivery

import (
	"context"
	"slices"
)

// Questions of operators. Each is answered by the lane of the user it is about, so an answer is of one moment.

// Delivery is what is known of one delivery, in flight or not.
type Delivery struct {
	Record        // Status refined by what is in flight
	Online bool   // the device is connected now
	Number uint64 // request number in the session; 0: not in flight
	DueMs  int64  // Unix: when the next timeout or retry is due; 0: none
}

// UserInfo is one user. Without devices it was never seen.
type UserInfo struct {
	User    string
	Devices []DeviceInfo
}

// DeviceInfo is one device of a user.
type DeviceInfo struct {
	QueueInfo
	Online      bool
	SessionID   uint64
	Remote      string
	State       string // offline, live, backlog, stuck, stalled, parked
	InFlight    int
	Parked      int
	LastAckMs   int64 // Unix; 0: none in this session
	ConnectedMs int64 // Unix; 0: not connected
}

// Message is every delivery of a message id: live, dead and recently ended. Empty: unknown.
func (d *Dispatcher) Message(ctx context.Context, messageID string) ([]Delivery, error) {
	return d.look(ctx, d.core.store.Find(messageID))
}

// look refines what the store knows by what is in flight.
func (d *Dispatcher) look(ctx context.Context, records []Record) ([]Delivery, error) {
	list := make([]Delivery, len(records))
	for i := range records {
		r := records[i]
		x, err := ask(ctx, d.laneOfUser(r.User), func(e *Engine, now Now) Delivery { return e.describe(r, now) })
		if err != nil {
			return nil, err
		}
		list[i] = x
	}
	return list, nil
}

// Cancel ends every live delivery of a message id and reports how many that were, and how all of them stand afterwards. No
// deliveries: the id is unknown.
func (d *Dispatcher) Cancel(ctx context.Context, messageID string) (after []Delivery, cancelled int, err error) {
	for _, r := range d.core.store.Find(messageID) {
		if r.Status.End() {
			continue
		}
		won, err := ask(ctx, d.laneOfUser(r.User), func(e *Engine, now Now) bool { return e.Cancel(&r, now) })
		if err != nil {
			return nil, cancelled, err
		}
		if won {
			cancelled++
		}
	}
	after, err = d.Message(ctx, messageID)
	return after, cancelled, err
}

// User is what is known of a user.
func (d *Dispatcher) User(ctx context.Context, user string) (UserInfo, error) {
	return ask(ctx, d.laneOfUser(user), func(e *Engine, now Now) UserInfo { return e.describeUser(user, now) })
}

// Wait returns when every delivery of a message id has ended, or ctx has; with users, those to them only: others may have been sent
// something else under the same id. Empty: the id is unknown.
func (d *Dispatcher) Wait(ctx context.Context, messageID string, users ...string) ([]Delivery, error) {
	w := d.core.watches.open()
	defer d.core.watches.close(w)
	records := recordsOf(d.core.store.Find(messageID), users)
	for _, r := range records {
		d.core.watches.add(w, r.Ref)
	}
	live := make(map[Ref]bool)
	for _, r := range d.core.store.Find(messageID) { // after registering: whatever ends from here on is told
		live[r.Ref] = !r.Status.End()
	}
	for _, r := range records {
		if !live[r.Ref] { // ended, or forgotten since
			d.core.watches.endedOne(r.Ref)
		}
	}
	d.core.watches.seal(w)
	select {
	case <-w.done:
		return d.look(ctx, recordsOf(d.core.store.Find(messageID), users))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// recordsOf keeps what is to one of users; nobody named: all.
func recordsOf(records []Record, users []string) []Record {
	if len(users) == 0 {
		return records
	}
	named := make(map[string]bool, len(users))
	for _, user := range users {
		named[user] = true
	}
	return slices.DeleteFunc(records, func(r Record) bool { return !named[r.User] })
}

// ask has a lane answer a question. It must not be called by a lane.
func ask[T any](ctx context.Context, l *lane, f func(*Engine, Now) T) (answer T, err error) {
	done := make(chan T, 1)
	if !l.call(func(e *Engine, now Now) { done <- f(e, now) }) {
		return answer, ErrClosed
	}
	select {
	case answer = <-done:
		return answer, nil
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// Stats are counters and gauges of this moment.
type Stats struct {
	Online, Publishers, InFlight, Parked            int
	Accepted, Duplicates, Refused                   uint64 // messages
	Sent, Acked, LateAcks, Timeouts, Retries, Nacks uint64 // deliveries
	Dead, Expired, Cancelled                        uint64
	NoAckSent, NoAckDropped                         uint64
}

// Stats reads the counters. It takes each shard's lock for a moment.
func (d *Dispatcher) Stats() Stats {
	c, t := d.core.count, d.core.table.Stats()
	s := Stats{
		Online: int(c.online.Load()), Publishers: int(c.publishers.Load()),
		InFlight: t.Entries - t.Parked, Parked: t.Parked,
		Accepted: c.accepted.Get(), Duplicates: c.duplicates.Get(),
		Sent: c.sent.Get(), Acked: c.acked.Get(), LateAcks: c.lateAcks.Get(),
		Timeouts: c.timeouts.Get(), Retries: c.retries.Get(), Nacks: c.nacks.Get(),
		Expired: c.expired.Get(), Cancelled: c.cancelled.Get(),
		NoAckSent: c.noAckSent.Get(), NoAckDropped: c.noAckOffline.Get() + c.noAckOutbox.Get(),
	}
	for _, n := range c.refused {
		s.Refused += n.Get()
	}
	for _, n := range c.dead {
		if n != nil {
			s.Dead += n.Get()
		}
	}
	return s
}
