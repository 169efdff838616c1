package scheduler

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
)

// takeAll takes from b until it refuses, at most limit.
func takeAll(b *Budget, nowMs int64, limit int) int {
	n := 0
	for n < limit && b.Take(nowMs) {
		n++
	}
	return n
}

func TestBudgetGivesAShareOfFreshDeliveriesPlusAFloor(t *testing.T) {
	const all = 1_000_000
	type step struct {
		nowMs int64
		fresh int
		ask   int
		want  int // retries that may be sent then
	}
	for _, c := range []struct {
		name   string
		config BudgetConfig
		steps  []step
	}{
		{"share only", BudgetConfig{Share: 0.1}, []step{{0, 0, all, 0}, {1, 1000, all, 100}, {2, 0, all, 0}, {3, 9, all, 0}, {4, 1, all, 1}}},
		{"floor only", BudgetConfig{FloorPerSecond: 5}, []step{{0, 1000, all, 5}, {100, 0, all, 0}, {200, 0, all, 1}, {1200, 0, all, 5}, {100_000, 0, all, 5}}},
		{"both", BudgetConfig{Share: 0.1, FloorPerSecond: 5}, []step{{0, 100, all, 15}, {1000, 100, all, 15}}},
		{"neither", BudgetConfig{}, []step{{0, 1000, all, 0}, {1_000_000, 1000, all, 0}}},
		{"what was not used is kept for ten seconds", BudgetConfig{Share: 0.1}, []step{{0, 1000, 1, 1}, {9_999, 0, all, 99}}},
		{"and not longer", BudgetConfig{Share: 0.1}, []step{{0, 1000, 1, 1}, {10_000, 10, all, 1}}},
		{"a long silence forgets everything", BudgetConfig{Share: 0.1}, []step{{0, 1000, 1, 1}, {3_600_000, 10, all, 1}, {3_600_001, 0, all, 0}}},
		{"an hour of good weather counts as ten seconds", BudgetConfig{Share: 0.1}, []step{{0, 0, 1, 0}, {3_599_999, 3_600_000, all, 1000}}},
		{"what was used counts for ten seconds", BudgetConfig{Share: 0.5}, []step{{0, 10, all, 5}, {5000, 2, all, 1}, {10_000, 0, all, 0}, {10_001, 4, all, 2}}},
		{"a clock that goes back", BudgetConfig{Share: 0.1, FloorPerSecond: 1}, []step{{50_000, 10, all, 2}, {10_000, 10, all, 1}, {51_000, 0, all, 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewBudget(c.config, c.steps[0].nowMs)
			for i, s := range c.steps {
				b.Fresh(s.fresh)
				if got := takeAll(b, s.nowMs, s.ask); got != s.want {
					t.Fatalf("step %d at %d ms: %d retries, want %d", i, s.nowMs, got, s.want)
				}
			}
		})
	}
}

// R9: however many time out at once, for however long, retries stay a share of what is sent fresh.
func TestR9BudgetBoundsAnAvalanche(t *testing.T) {
	b := NewBudget(BudgetConfig{Share: 0.1, FloorPerSecond: 100}, 0)
	fresh, retries := 0, 0
	for nowMs := int64(0); nowMs < 60_000; nowMs += 10 {
		b.Fresh(50)
		fresh += 50
		retries += takeAll(b, nowMs, 10_000)
		if most := float64(fresh)*0.1 + 100*(float64(nowMs)/1000+1) + 1; float64(retries) > most {
			t.Fatalf("after %d ms: %d retries for %d fresh deliveries", nowMs, retries, fresh)
		}
	}
	if retries < fresh/10+59*100 {
		t.Fatalf("only %d retries for %d fresh deliveries in a minute", retries, fresh)
	}
}

func TestBudgetCountsRightWithManyGoroutines(t *testing.T) {
	b := NewBudget(BudgetConfig{Share: 0.1}, 0)
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10_000 {
				b.Fresh(1)
				if b.Take(500) {
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	taken.Add(int64(takeAll(b, 500, 1_000_000)))
	if taken.Load() != 4000 {
		t.Fatalf("%d retries for 40000 fresh deliveries, want 4000", taken.Load())
	}
}

func TestBudgetDoesNotAllocate(t *testing.T) {
	b := NewBudget(BudgetConfig{Share: 0.1, FloorPerSecond: 1}, 0)
	nowMs := int64(0)
	if n := testing.AllocsPerRun(1000, func() { nowMs += 700; b.Fresh(3); b.Take(nowMs) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestBudgetConfigValidateNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		config BudgetConfig
		want   string
	}{
		{BudgetConfig{}, ""},
		{BudgetConfig{Share: 1, FloorPerSecond: 1}, ""},
		{BudgetConfig{Share: -0.1}, "retry budget share must be between 0 and 1"},
		{BudgetConfig{Share: 1.1}, "retry budget share must be between 0 and 1"},
		{BudgetConfig{Share: math.NaN()}, "retry budget share must be between 0 and 1"},
		{BudgetConfig{FloorPerSecond: -1}, "retry budget floor must not be below 0"},
	} {
		got := ""
		if err := c.config.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.config, got, c.want)
		}
	}
}
