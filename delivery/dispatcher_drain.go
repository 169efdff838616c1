package delivery

import (
	"context"
	"time"

	"holdfast/codec"
)

// Draining reports whether Drain or Close was called.
func (d *Dispatcher) Draining() bool { return d.draining.Load() }

// DrainOptions says how clients are sent away.
type DrainOptions struct {
	Window  time.Duration // they are asked to come back spread over this, and closed spread over it
	Servers string        // comma-separated host:port of where to, may be empty
}

// Drain refuses pushes and logins from now on and sends the clients away. It returns nil when the last one is gone. When ctx ends
// first, it closes the rest, whatever they have in flight (the store keeps it), and returns ctx's error.
func (d *Dispatcher) Drain(ctx context.Context, o DrainOptions) error {
	d.draining.Store(true)
	windowMs := o.Window.Milliseconds()
	deadlineMs := windowMs
	if end, ok := ctx.Deadline(); ok {
		deadlineMs = max(0, time.Until(end).Milliseconds())
	}
	for _, l := range d.lanes {
		l.call(func(e *Engine, now Now) { e.GoAway(windowMs, deadlineMs, o.Servers, now) })
	}
	d.sendPublishersAway(o, deadlineMs)
	poll := time.NewTicker(drainPollEvery)
	defer poll.Stop()
	late := time.NewTimer(o.Window)
	defer late.Stop()
	for d.core.count.online.Load()+d.core.count.publishers.Load() > 0 {
		select {
		case <-poll.C:
		case <-late.C:
			d.closePublishers()
		case <-ctx.Done():
			for _, l := range d.lanes {
				l.call(func(e *Engine, _ Now) { e.CloseAll(codec.CodeGoingAway, stoppingReason) })
			}
			d.closePublishers()
			return ctx.Err()
		}
	}
	return nil
}

func (d *Dispatcher) sendPublishersAway(o DrainOptions, deadlineMs int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := range d.publishers {
		frame := codec.AppendGoAway(nil, &codec.GoAway{DeadlineMs: uint64(deadlineMs), Servers: []byte(o.Servers)})
		l.peer.Send(frame)
	}
}

func (d *Dispatcher) closePublishers() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := range d.publishers {
		l.peer.Close(codec.CodeGoingAway, stoppingReason, 0)
	}
}
