package bench

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"holdfast/client"
	"holdfast/codec"
)

// leanListener is a speech whose connections take messages. Its methods are called on the goroutine of the user's connection.
type leanListener interface {
	leanSpeech
	// take handles the frame at the start of b, and appends what has to be answered to out.
	take(user int, b, out []byte) ([]byte, error)
	// answer appends to out what waited for the end of a read.
	answer(user int, out []byte) []byte
	// answered follows when all of that has gone to the socket.
	answered(user int)
}

// leanKeepalive is how often a receiver pings, whatever else it sends: less than the default of gateways and brokers.
const leanKeepalive = 30 * time.Second

// leanFleet are the receivers of a fleet as lean connections: they take messages and confirm them as the client library does, what one
// read brought with one write, but do not come back when their connection ends, which no load of theirs lets happen.
type leanFleet struct {
	f     *fleet
	crowd *leanCrowd
	err   atomic.Pointer[error] // the first connection that ended after its login
	all   []leanReceiver
}

// leanReceiver is the state of one user. Its counters are read by others.
type leanReceiver struct {
	seen       uint64 // highest request number: the server counts them without gaps
	taken      int    // and not confirmed yet
	received   atomic.Uint64
	duplicates atomic.Uint64
	ackFrames  atomic.Uint64
}

// lean reports whether the receivers can do without the client library: nothing about them is out of the ordinary.
func (f *fleet) lean() bool {
	o := &f.o
	return o.lean && o.dialConn == nil && o.wrap == nil && o.dedup == nil && o.backlog == 0 && f.r.faults == nil
}

// connectLean logs everybody in.
func (f *fleet) connectLean(ctx context.Context) error {
	l := &leanFleet{f: f, all: make([]leanReceiver, len(f.members))}
	target, from := &f.r.o.Target, order{Addr: f.r.o.Target.Addr, PerSource: f.r.perSource}
	var speech leanListener = &leanHoldfastListener{
		leanHoldfast: leanHoldfast{name: f.userName, window: f.o.window, token: target.Token}, l: l,
	}
	if target.MQTT != nil {
		speech = &leanMQTTListener{leanMQTT: leanMQTT{name: f.userName, login: target.MQTT}, l: l}
	}
	crowd, err := newLeanCrowd(leanOptions{
		addr: target.Addr, name: f.userName, now: f.r.now, speech: speech, keepalive: leanKeepalive,
		source: func(user int) net.IP { return source(from, f.first+user) },
		lost:   func(_ int, err error) { l.err.CompareAndSwap(nil, &err) },
	})
	if err != nil {
		return err
	}
	l.crowd = crowd
	f.leanly = l
	logins, err := crowd.hellos(0, len(f.members))
	if err != nil {
		return err
	}
	return crowd.login(ctx, logins, dialsAtOnce)
}

// ended is the first connection that was lost.
func (l *leanFleet) ended() error {
	if err := l.err.Load(); err != nil {
		return fmt.Errorf("a receiver's connection ended: %w", *err)
	}
	return nil
}

func (l *leanFleet) stats() (sum client.Stats) {
	for i := range l.all {
		rc := &l.all[i]
		sum.Received += rc.received.Load()
		sum.Duplicates += rc.duplicates.Load()
		sum.AckFrames += rc.ackFrames.Load()
	}
	return sum
}

// answered notes that what a user has taken is confirmed.
func (l *leanFleet) answered(user int) {
	rc := &l.f.members[user]
	rc.noteAcked(rc.takeHandled())
}

// leanHoldfastListener takes messages from a gateway.
type leanHoldfastListener struct {
	leanHoldfast
	l *leanFleet
}

// take implements leanListener.
func (h *leanHoldfastListener) take(user int, b, out []byte) ([]byte, error) {
	f, _, err := codec.Parse(b, codec.FrameBytesMax)
	if err != nil {
		return out, err
	}
	switch f.Type {
	case codec.TypePush:
	case codec.TypePing:
		data, err := codec.DecodePing(f)
		return codec.AppendPong(out, data), err
	default:
		return out, nil
	}
	var p codec.Push
	if err := codec.DecodePush(f, &p); err != nil {
		return out, fmt.Errorf("a PUSH: %w", err)
	}
	rc := &h.l.all[user]
	rc.received.Add(1)
	if p.NoAck {
		h.l.f.members[user].take(p.Payload, true)
		return out, nil
	}
	if p.Number <= rc.seen { // sent again: its ACK was late
		rc.duplicates.Add(1)
		rc.ackFrames.Add(1)
		return codec.AppendAckOne(out, p.Number, codec.LevelProcessed), nil
	}
	rc.seen = p.Number
	h.l.f.members[user].take(p.Payload, false)
	if h.l.f.o.ackEach {
		rc.ackFrames.Add(1)
		return codec.AppendAckOne(out, p.Number, codec.LevelProcessed), nil
	}
	rc.taken++
	return out, nil
}

// answer implements leanListener with the frame the client library would send.
func (h *leanHoldfastListener) answer(user int, out []byte) []byte {
	rc := &h.l.all[user]
	if rc.taken == 0 {
		return out
	}
	rc.ackFrames.Add(1)
	if rc.taken == 1 {
		out = codec.AppendAckOne(out, rc.seen, codec.LevelProcessed)
	} else {
		out = codec.AppendAckUpTo(out, rc.seen, codec.LevelProcessed) // all before were confirmed, as they were read
	}
	rc.taken = 0
	return out
}

// answered implements leanListener. All that was taken is confirmed by now: answer leaves nothing.
func (h *leanHoldfastListener) answered(user int) { h.l.answered(user) }

// leanMQTTListener takes messages from a broker.
type leanMQTTListener struct {
	leanMQTT
	l *leanFleet
}

// take implements leanListener.
func (m *leanMQTTListener) take(user int, b, out []byte) ([]byte, error) {
	p, _, err := parseMQTT(b)
	if err != nil || p.kind != mqttPublish {
		return out, err
	}
	id, _, payload, err := p.message()
	if err != nil {
		return out, err
	}
	rc := &m.l.all[user]
	rc.received.Add(1)
	m.l.f.members[user].take(payload, id == 0)
	if id != 0 {
		rc.ackFrames.Add(1)
		out = appendMQTTPuback(out, id)
	}
	return out, nil
}

// answer implements leanListener: every PUBACK has been given out already.
func (m *leanMQTTListener) answer(_ int, out []byte) []byte { return out }

// answered implements leanListener.
func (m *leanMQTTListener) answered(user int) { m.l.answered(user) }
