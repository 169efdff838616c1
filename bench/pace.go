package bench

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// sleepMin is the shortest sleep of a pacer: below it the wake-ups would cost more than the messages.
const sleepMin = 200 * time.Microsecond

// pacer says when the n-th message of an open loop is due, and waits for it. Messages that are late are due at once, with their
// intended times. It belongs to one goroutine.
type pacer struct {
	r      *Run
	from   int64   // when message 0 is due
	period float64 // nanoseconds between messages
	next   int64   // the first message not given out yet
}

func newPacer(r *Run, perSecond float64) *pacer {
	return &pacer{r: r, from: r.now(), period: float64(time.Second) / perSecond}
}

// intended is when message n was meant to be sent.
func (p *pacer) intended(n int64) int64 { return p.from + int64(float64(n)*p.period) }

// due waits until at least one message is due, and returns the first number and how many are due, at most limit. ok is false when
// ctx has ended.
func (p *pacer) due(ctx context.Context, limit int64) (first, n int64, ok bool) {
	for ctx.Err() == nil {
		now := p.r.now()
		if ready := int64(float64(now-p.from)/p.period) + 1 - p.next; now >= p.intended(p.next) && ready > 0 {
			first, n = p.next, min(ready, limit)
			p.next += n
			return first, n, true
		}
		p.sleep(ctx, time.Duration(p.intended(p.next)-now))
	}
	return 0, 0, false
}

// sleep waits for d or the end of ctx. Short sleeps ask the kernel directly: the runtime's timers are only good for a millisecond
// when the process is otherwise idle.
func (*pacer) sleep(ctx context.Context, d time.Duration) {
	if d > 2*time.Millisecond {
		timer := time.NewTimer(d - time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return
	}
	ts := unix.NsecToTimespec(int64(max(d, sleepMin)))
	_ = unix.Nanosleep(&ts, nil) // cut short by a signal: the loop looks at the clock again
	runtime.Gosched()
}
