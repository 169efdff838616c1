package scheduler

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestBackoffPresetsAndTheirBounds(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name  string
		curve []time.Duration // without jitter, from the first retry on; the last one stays
	}{
		{"standard", []time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}},
		{"steep", []time.Duration{1 * s, 4 * s, 16 * s, 16 * s}},
	} {
		b, ok := ParsePreset(c.name)
		if !ok || b.Validate() != nil {
			t.Fatalf("%s: %+v, %t, %v", c.name, b, ok, b.Validate())
		}
		r := rand.New(rand.NewPCG(1, 1))
		for i, curve := range c.curve {
			lowest, highest := time.Duration(math.MaxInt64), time.Duration(0)
			for range 20_000 {
				d := b.Delay(i+1, r)
				lowest, highest = min(lowest, d), max(highest, d)
			}
			minimum, maximum := curve+200*time.Millisecond, curve+800*time.Millisecond
			if lowest < minimum || highest > maximum || b.Max(i+1) != maximum {
				t.Errorf("%s, retry %d: between %v and %v (Max %v), want %v to %v", c.name, i+1, lowest, highest, b.Max(i+1), minimum, maximum)
			}
			if lowest > minimum+time.Millisecond || highest < maximum-time.Millisecond {
				t.Errorf("%s, retry %d: between %v and %v: the jitter does not fill its range", c.name, i+1, lowest, highest)
			}
		}
		last := c.curve[len(c.curve)-1] + 800*time.Millisecond
		for _, retry := range []int{100, 1025, math.MaxInt} {
			if got := b.Max(retry); got != last {
				t.Errorf("%s, retry %d: up to %v, want %v", c.name, retry, got, last)
			}
		}
		for _, retry := range []int{0, -1, math.MinInt} {
			if got := b.Max(retry); got != b.Max(1) {
				t.Errorf("%s, retry %d: up to %v, want as for the first", c.name, retry, got)
			}
		}
	}
	if _, ok := ParsePreset("fixed"); ok {
		t.Error("there is a preset of a fixed interval")
	}
}

func TestBackoffWithoutGrowthOrJitter(t *testing.T) {
	b := Backoff{Base: time.Second, Factor: 1, Ceiling: time.Second}
	if got := b.Delay(50, nil); got != time.Second {
		t.Fatalf("%v", got)
	}
}

func TestBackoffValidateNamesWhatIsWrong(t *testing.T) {
	good := Standard()
	for _, c := range []struct {
		want   string
		change func(b *Backoff)
	}{
		{"back-off base must be above 0", func(b *Backoff) { b.Base = 0 }},
		{"back-off factor must be at least 1", func(b *Backoff) { b.Factor = 0.5 }},
		{"back-off factor must be at least 1", func(b *Backoff) { b.Factor = math.NaN() }},
		{"back-off factor must be at least 1", func(b *Backoff) { b.Factor = math.Inf(1) }},
		{"back-off ceiling must not be below its base", func(b *Backoff) { b.Ceiling = b.Base - 1 }},
		{"back-off jitter must be a range from 0 up", func(b *Backoff) { b.JitterMin = -1 }},
		{"back-off jitter must be a range from 0 up", func(b *Backoff) { b.JitterMax = b.JitterMin - 1 }},
		{"back-off ceiling and jitter together are too large", func(b *Backoff) { b.Ceiling = math.MaxInt64 }},
	} {
		b := good
		c.change(&b)
		if err := b.Validate(); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v, want %q", b, err, c.want)
		}
	}
}
