package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"holdfast/client"
)

const (
	// mqttInflight is how many messages of one publisher may be without a PUBACK; a call of PublishAsync must fit.
	mqttInflight = 4096
	// mqttStall is how long a broker may read nothing, or have no room for more, before the publisher gives up.
	mqttStall = 10 * time.Second
)

var errMQTTStall = fmt.Errorf("the broker has taken nothing for %v", mqttStall)

// mqttPublisher publishes at QoS 1, or 0 for fire and forget, with many messages a write and mqttInflight unanswered. It stands where
// the client library's publisher stands: a message's user is the topic, and a PUBACK is the answer.
type mqttPublisher struct {
	*mqttConn

	// Guarded by writing, which is held over a write so that the order of calls is that of the messages.
	writing  sync.Mutex
	buf      []byte
	deadline time.Time // of writes

	// Guarded by mu.
	mu       sync.Mutex
	free     []uint16            // packet ids
	inflight [mqttInflight]place // by packet id - 1
	finished []*mqttCall
	err      error
	room     chan struct{} // holds a token when ids came free
}

// place is where the answer to a packet id belongs; the zero value: nothing is under way.
type place struct {
	call *mqttCall
	i    int
}

// mqttCall is one PublishAsync. Guarded by mqttPublisher.mu until its callback is called.
type mqttCall struct {
	results []client.Result
	left    int
	done    func([]client.Result, error)
}

// dialMQTTPublisher logs a publisher in, trying until ctx ends.
func dialMQTTPublisher(ctx context.Context, o mqttOptions) (*mqttPublisher, error) {
	p := &mqttPublisher{room: make(chan struct{}, 1)}
	for id := uint16(mqttInflight); id > 0; id-- {
		p.free = append(p.free, id)
	}
	o.clean, o.puback, o.read, o.ended = true, p.answered, p.finish, p.fail
	c, err := dialMQTT(ctx, o, -1)
	if err != nil {
		return nil, err
	}
	p.mqttConn = c
	return p, nil
}

// PublishAsync is client.Client's. Messages have no id here: MQTT does not carry one.
func (p *mqttPublisher) PublishAsync(ctx context.Context, msgs []client.Outgoing, done func([]client.Result, error)) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	call := &mqttCall{results: make([]client.Result, len(msgs)), done: done}
	ids, err := p.takeIDs(ctx, msgs, call)
	if err != nil {
		return err
	}
	b := p.buf[:0]
	for i := range msgs {
		var id uint16 // QoS 0
		if !msgs[i].NoAck {
			id, ids = ids[0], ids[1:]
		}
		b = appendMQTTPublish(b, id, msgs[i].User, msgs[i].Payload)
	}
	p.buf = b
	if now := time.Now(); p.deadline.Sub(now) < mqttStall/2 {
		p.deadline = now.Add(mqttStall)
		_ = p.nc.SetWriteDeadline(p.deadline) // a broken connection says so at the write
	}
	sent := call.left == 0 // nothing will answer
	_, err = p.nc.Write(b)
	switch {
	case sent && err == nil:
		done(call.results, nil)
		return nil
	case err != nil && sent:
		return fmt.Errorf("publish: %w", err)
	case err != nil:
		_ = p.nc.Close() // the reader ends and fails the call
	}
	return nil
}

// takeIDs waits until each message that wants an answer has a packet id, and notes where the answers belong.
func (p *mqttPublisher) takeIDs(ctx context.Context, msgs []client.Outgoing, call *mqttCall) ([]uint16, error) {
	want := 0
	for i := range msgs {
		if !msgs[i].NoAck {
			want++
		}
	}
	if want > mqttInflight {
		return nil, errors.New("publish: more messages than may be under way")
	}
	stall := time.NewTimer(mqttStall)
	defer stall.Stop()
	p.mu.Lock()
	for p.err == nil && len(p.free) < want {
		p.mu.Unlock()
		select {
		case <-p.room:
			stall.Reset(mqttStall)
		case <-stall.C:
			return nil, errMQTTStall
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	from := len(p.free) - want
	ids := make([]uint16, want)
	copy(ids, p.free[from:])
	p.free = p.free[:from]
	next := 0
	for i := range msgs {
		if !msgs[i].NoAck {
			p.inflight[ids[next]-1] = place{call, i}
			next++
		}
	}
	call.left = want
	return ids, nil
}

// answered takes a PUBACK, on the reading goroutine.
func (p *mqttPublisher) answered(id uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id == 0 || id > mqttInflight || p.inflight[id-1].call == nil {
		return fmt.Errorf("a PUBACK for packet id %d, which is not under way", id)
	}
	at := &p.inflight[id-1]
	if at.call.left--; at.call.left == 0 {
		p.finished = append(p.finished, at.call)
	}
	*at = place{}
	p.free = append(p.free, id)
	return nil
}

// finish calls the callbacks that are due after a read, on the reading goroutine.
func (p *mqttPublisher) finish() {
	p.mu.Lock()
	finished := p.finished
	p.finished = nil
	p.mu.Unlock()
	select {
	case p.room <- struct{}{}:
	default:
	}
	for _, call := range finished {
		call.done(call.results, nil)
	}
}

// fail ends every call when the connection ends: whether the broker has what it did not answer, nobody knows.
func (p *mqttPublisher) fail(err error) {
	if errors.Is(err, net.ErrClosed) {
		err = errMQTTStall // our own write closed it
	}
	p.mu.Lock()
	p.err = err
	open := map[*mqttCall]bool{}
	for _, at := range p.inflight {
		if at.call != nil {
			at.call.results[at.i].Err = client.ErrUnanswered
			open[at.call] = true
		}
	}
	p.mu.Unlock()
	p.finish()
	for call := range open {
		call.done(call.results, err)
	}
}
