package scheduler

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is an exponential curve with a ceiling, plus a random part that is added after the ceiling, so that the copies of a
// thousand messages that timed out together do not come back together, not even at the ceiling.
type Backoff struct {
	Base      time.Duration // before the first retry
	Factor    float64       // from one retry to the next; at least 1
	Ceiling   time.Duration // of the curve, without jitter; at least Base
	JitterMin time.Duration
	JitterMax time.Duration // at least JitterMin
}

// Standard is 1 s, 2 s, 4 s, … up to 30 s, plus 200 to 800 ms.
func Standard() Backoff {
	return Backoff{Base: time.Second, Factor: 2, Ceiling: 30 * time.Second, JitterMin: 200 * time.Millisecond, JitterMax: 800 * time.Millisecond}
}

// Steep is 1 s, 4 s, 16 s and then stays there, plus 200 to 800 ms: fewer copies for clients that are likely to be gone.
func Steep() Backoff {
	return Backoff{Base: time.Second, Factor: 4, Ceiling: 16 * time.Second, JitterMin: 200 * time.Millisecond, JitterMax: 800 * time.Millisecond}
}

// ParsePreset returns the curve a configuration names: "standard" or "steep".
func ParsePreset(name string) (Backoff, bool) {
	switch name {
	case "standard":
		return Standard(), true
	case "steep":
		return Steep(), true
	}
	return Backoff{}, false
}

// Validate names the relation that does not hold.
func (b Backoff) Validate() error {
	switch {
	case b.Base <= 0:
		return errors.New("back-off base must be above 0")
	case !(b.Factor >= 1) || math.IsInf(b.Factor, 1):
		return errors.New("back-off factor must be at least 1")
	case b.Ceiling < b.Base:
		return errors.New("back-off ceiling must not be below its base")
	case b.JitterMin < 0 || b.JitterMax < b.JitterMin:
		return errors.New("back-off jitter must be a range from 0 up")
	case b.Ceiling > math.MaxInt64-b.JitterMax:
		return errors.New("back-off ceiling and jitter together are too large")
	}
	return nil
}

// Delay is how long to wait before a retry: the first is retry 1 (lower numbers are taken as 1). r gives the jitter and is
// used by the calling goroutine only.
func (b Backoff) Delay(retry int, r *rand.Rand) time.Duration {
	d := b.curve(retry) + b.JitterMin
	if spread := int64(b.JitterMax - b.JitterMin); spread > 0 {
		d += time.Duration(r.Int64N(spread + 1))
	}
	return d
}

// Max is the largest value Delay can give for this retry.
func (b Backoff) Max(retry int) time.Duration { return b.curve(retry) + b.JitterMax }

// curve multiplies step by step and stops at the ceiling: a power would overflow for high retry numbers.
func (b Backoff) curve(retry int) time.Duration {
	d := float64(b.Base)
	for range min(max(retry, 1), 1024) - 1 {
		if d *= b.Factor; d >= float64(b.Ceiling) {
			return b.Ceiling
		}
	}
	return min(time.Duration(d), b.Ceiling)
}
