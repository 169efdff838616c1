package scheduler

import "testing"

func TestBucketTakesAllOrNone(t *testing.T) {
	type step struct {
		nowMs  int64
		n      int
		ok     bool
		waitMs int64 // asked before Take
	}
	for _, c := range []struct {
		name             string
		perSecond, burst float64
		steps            []step
	}{
		{"starts full", 10, 5, []step{{0, 5, true, 0}, {0, 1, false, 100}}},
		{"all or none", 10, 5, []step{{0, 3, true, 0}, {0, 3, false, 100}, {0, 2, true, 0}}},
		{"fills at its rate", 10, 5, []step{{0, 5, true, 0}, {99, 1, false, 1}, {100, 1, true, 0}, {300, 2, true, 0}, {301, 1, false, 99}}},
		{"never above the burst", 10, 5, []step{{0, 5, true, 0}, {1_000_000, 5, true, 0}, {1_000_000, 1, false, 100}}},
		{"more than the burst never", 10, 5, []step{{0, 6, false, -1}, {1_000_000, 6, false, -1}, {1_000_000, 5, true, 0}}},
		{"rate 0 is no limit", 0, 0, []step{{0, 1 << 30, true, 0}, {0, 1 << 30, true, 0}}},
		{"slow rate", 0.5, 1, []step{{0, 1, true, 0}, {0, 1, false, 2000}, {1999, 1, false, 1}, {2000, 1, true, 0}}},
		{"a clock that goes back gives nothing", 10, 5, []step{{1000, 5, true, 0}, {0, 1, false, 100}, {1100, 1, true, 0}}},
		{"nothing is always there", 10, 5, []step{{0, 5, true, 0}, {0, 0, true, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewBucket(c.perSecond, c.burst, 0)
			for i, s := range c.steps {
				if got := b.WaitMs(s.nowMs, s.n); got != s.waitMs {
					t.Fatalf("step %d: wait %d ms, want %d", i, got, s.waitMs)
				}
				if got := b.Take(s.nowMs, s.n); got != s.ok {
					t.Fatalf("step %d: Take(%d) = %t, want %t", i, s.n, got, s.ok)
				}
			}
		})
	}
}

func TestZeroBucketHasNoLimit(t *testing.T) {
	var b Bucket
	if !b.Take(5, 1<<30) || b.TakeUpTo(5, 1<<30) != 1<<30 || b.WaitMs(5, 1<<30) != 0 {
		t.Fatal("it has")
	}
}

func TestBucketTakesUpToWhatIsThere(t *testing.T) {
	b := NewBucket(1000, 10, 0)
	for i, s := range []struct {
		nowMs   int64
		n, want int
	}{{0, 4, 4}, {0, 100, 6}, {0, 1, 0}, {3, 100, 3}, {1000, 100, 10}, {1000, 0, 0}} {
		if got := b.TakeUpTo(s.nowMs, s.n); got != s.want {
			t.Fatalf("step %d: %d, want %d", i, got, s.want)
		}
	}
}

// WaitMs is a promise: whoever waits that long gets his tokens, whatever rounding does.
func TestBucketWaitIsLongEnough(t *testing.T) {
	for _, perSecond := range []float64{0.1, 0.3, 1, 3, 7, 33.3, 1000, 20_000, 123_456.7} {
		b := NewBucket(perSecond, 50, 0)
		nowMs := int64(0)
		for i := range 2000 {
			n := 1 + i%50
			nowMs += b.WaitMs(nowMs, n)
			if !b.Take(nowMs, n) {
				t.Fatalf("rate %v: %d tokens were not there after the wait", perSecond, n)
			}
		}
	}
}

// Over any time, no more than the rate and one burst.
func TestBucketKeepsItsRate(t *testing.T) {
	b := NewBucket(100, 20, 0)
	taken := 0
	for nowMs := int64(0); nowMs <= 60_000; nowMs += 7 {
		taken += b.TakeUpTo(nowMs, 1000)
	}
	if taken < 100*60 || taken > 100*60+21 {
		t.Fatalf("%d in a minute at 100 a second with a burst of 20", taken)
	}
}
