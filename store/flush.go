package store

import (
	"context"
	"fmt"
)

// Flush returns when every end that End and DropDead have taken so far is written as an accepted message would be. Ends are lazy
// because an ACK that a crash forgets costs a copy and nothing else; who was told that a message is cancelled, or a dead letter
// gone, must not see it again.
func (l *Local) Flush(ctx context.Context) error {
	done := l.whenFlushed()
	if done == nil {
		return nil
	}
	l.nudge()
	select {
	case <-done:
		return nil
	case <-l.done:
		select {
		case <-done: // with the last batch
			return nil
		default:
			return ErrClosed
		}
	case <-ctx.Done():
		return fmt.Errorf("store: waiting for ends to be written: %w", ctx.Err())
	}
}

// whenFlushed is closed when the batch that carries the latest ends is written; nil: nothing waits to be written.
func (l *Local) whenFlushed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.open
	if !b.lazy() {
		b = l.flushing // what there was may have been cut a moment ago
	}
	if b == nil {
		return nil
	}
	done := make(chan struct{})
	b.flushes = append(b.flushes, done)
	return done
}

// tellFlushed ends the waiting of Flush for b. Called with the lock held.
func (b *batch) tellFlushed() {
	for _, done := range b.flushes {
		close(done)
	}
	b.flushes = nil
}
