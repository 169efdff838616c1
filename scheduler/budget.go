package scheduler

import (
	"errors"
	"sync"
	"sync/atomic"
)

// budgetWindowSeconds is the time over which retries are held against fresh deliveries: long enough that the usual ACK
// timeout lies inside it (the retries of a second's deliveries find them still counted), short enough that an hour of
// good weather does not pay for an avalanche.
const budgetWindowSeconds = 10

// BudgetConfig says how many retries a node may send.
type BudgetConfig struct {
	Share          float64 // of the fresh deliveries of the last 10 s; 0.1 is one retry for ten
	FloorPerSecond int     // that many each second in any case, so that a quiet node can still repair a lost frame
}

// Validate names the relation that does not hold.
func (c BudgetConfig) Validate() error {
	if !(c.Share >= 0 && c.Share <= 1) {
		return errors.New("retry budget share must be between 0 and 1")
	}
	if c.FloorPerSecond < 0 {
		return errors.New("retry budget floor must not be below 0")
	}
	return nil
}

// Budget bounds retries to a share of fresh deliveries plus a floor: however many messages time out at once, the load that
// retries add stays a fraction of the load that is there anyway. One for a node; safe for concurrent use.
type Budget struct {
	share float64

	fresh atomic.Int64 // since the last Take; an addition is all that the hot path pays

	mu     sync.Mutex // guards the rest; only retries take it
	floor  Bucket
	second int64                        // the second the newest slot stands for
	spent  int64                        // by share, over all slots
	earned int64                        // fresh deliveries, over all slots
	slots  [budgetWindowSeconds]account // by second modulo their number
}

type account struct{ earned, spent int64 }

// NewBudget returns a budget that stands at nowMs.
func NewBudget(c BudgetConfig, nowMs int64) *Budget {
	b := &Budget{share: c.Share, second: nowMs / 1000}
	if c.FloorPerSecond > 0 {
		b.floor = NewBucket(float64(c.FloorPerSecond), float64(c.FloorPerSecond), nowMs)
	} else {
		b.floor = NewBucket(1e-9, 0, nowMs) // a rate of 0 would mean no limit
	}
	return b
}

// Fresh counts n first deliveries.
func (b *Budget) Fresh(n int) { b.fresh.Add(int64(n)) }

// Take reports whether one more retry may be sent now, and counts it if so.
func (b *Budget) Take(nowMs int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.roll(nowMs/1000, b.fresh.Swap(0))
	if float64(b.spent+1) <= b.share*float64(b.earned) {
		b.slots[b.second%budgetWindowSeconds].spent++
		b.spent++
		return true
	}
	return b.floor.Take(nowMs, 1)
}

// roll forgets the seconds that have left the window and adds the fresh deliveries since the last roll. Fresh does not know the time,
// so they are spread evenly over the seconds since: after an hour without a retry, ten seconds' worth of them count. A second
// before the newest one is taken as the newest.
func (b *Budget) roll(second, fresh int64) {
	each := fresh / max(second-b.second+1, 1)
	if gap := second - b.second - budgetWindowSeconds; gap > 0 {
		b.second += gap
		fresh -= gap * each
	}
	for b.second < second {
		b.earn(each)
		fresh -= each
		b.second++
		slot := &b.slots[b.second%budgetWindowSeconds]
		b.earned -= slot.earned
		b.spent -= slot.spent
		*slot = account{}
	}
	b.earn(fresh)
	if b.earned < 0 || b.spent < 0 {
		panic("scheduler: a retry budget gave back more than it held")
	}
}

func (b *Budget) earn(n int64) {
	b.slots[b.second%budgetWindowSeconds].earned += n
	b.earned += n
}
