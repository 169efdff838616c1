package scheduler

import "math"

// tokenSlack forgives what rounding loses: after WaitMs has passed, Take succeeds.
const tokenSlack = 1e-6

// Bucket is a token bucket. The zero value takes nothing away from anybody: it has no limit. Not safe for concurrent use.
type Bucket struct {
	perSecond float64 // 0: no limit
	burst     float64
	tokens    float64
	atMs      int64
}

// NewBucket returns a full bucket that gains perSecond tokens a second up to burst. A rate of 0 means no limit.
func NewBucket(perSecond, burst float64, nowMs int64) Bucket {
	return Bucket{perSecond: perSecond, burst: burst, tokens: burst, atMs: nowMs}
}

// Take takes n tokens if that many are there, all or none.
func (b *Bucket) Take(nowMs int64, n int) bool {
	if b.perSecond == 0 {
		return true
	}
	b.fill(nowMs)
	if b.tokens+tokenSlack < float64(n) {
		return false
	}
	b.tokens -= float64(n)
	return true
}

// TakeUpTo takes as many whole tokens as there are, at most n, and returns their number.
func (b *Bucket) TakeUpTo(nowMs int64, n int) int {
	if b.perSecond == 0 {
		return n
	}
	b.fill(nowMs)
	got := min(float64(n), math.Floor(b.tokens+tokenSlack))
	b.tokens -= got
	return int(got)
}

// WaitMs is how long until Take(n) can succeed, in milliseconds: 0 for now, -1 for never (n is above the burst).
func (b *Bucket) WaitMs(nowMs int64, n int) int64 {
	if b.perSecond == 0 {
		return 0
	}
	b.fill(nowMs)
	switch missing := float64(n) - b.tokens; {
	case missing <= tokenSlack:
		return 0
	case float64(n) > b.burst:
		return -1
	default:
		return int64(math.Ceil((missing - tokenSlack) / b.perSecond * 1000))
	}
}

// fill adds what has come in since the last call; a clock that went back adds nothing.
func (b *Bucket) fill(nowMs int64) {
	if nowMs <= b.atMs {
		return
	}
	b.tokens = min(b.burst, b.tokens+float64(nowMs-b.atMs)/1000*b.perSecond)
	b.atMs = nowMs
}
