package scheduler

import "fmt"

// Check walks the whole wheel and panics with a clear text when something does not hold: links that do not match, a timer in
// a bucket that is not its own, a bucket bit that is wrong, a count that is off. For tests and simulations.
func (w *Wheel) Check() {
	linked := 0
	for b := range uint32(bucketCount) {
		linked += w.checkBucket(b)
	}
	if linked != w.armed {
		panic(fmt.Sprintf("scheduler: %d timers are linked, %d counted as armed", linked, w.armed))
	}
	marked := 0
	for _, c := range w.chunks {
		if c == nil {
			continue
		}
		for i := range c {
			if c[i].tick != 0 {
				marked++
			}
		}
	}
	if marked != w.armed {
		panic(fmt.Sprintf("scheduler: %d timers have a tick, %d counted as armed", marked, w.armed))
	}
}

func (w *Wheel) checkBucket(b uint32) int {
	head := headBase + b
	count := 0
	for i, last := w.heads[b].next, head; ; i, last = w.node(i).next, i {
		n := w.node(i)
		if n.prev != last {
			panic(fmt.Sprintf("scheduler: bucket %d: link back from %#x is %#x, not %#x", b, i, n.prev, last))
		}
		if i == head {
			break
		}
		if i > headBase {
			panic(fmt.Sprintf("scheduler: bucket %d runs into the head of bucket %d", b, i-headBase))
		}
		if n.tick < w.current {
			panic(fmt.Sprintf("scheduler: timer %d of tick %d was missed, the wheel is at %d", i, n.tick, w.current))
		}
		if !w.belongs(b, n.tick) {
			panic(fmt.Sprintf("scheduler: timer %d of tick %d is in bucket %d, the wheel is at %d", i, n.tick, b, w.current))
		}
		if count++; count > w.armed {
			panic(fmt.Sprintf("scheduler: bucket %d holds more timers than are armed: a ring without its head", b))
		}
	}
	if (count > 0) != w.has(b) {
		panic(fmt.Sprintf("scheduler: bucket %d holds %d timers and its bit says %t", b, count, w.has(b)))
	}
	return count
}

// belongs reports whether a timer of tick may be in bucket b: its own one, or one that is about to be spread.
func (w *Wheel) belongs(b uint32, tick int64) bool {
	if b == bucketTurned || w.bucketOf(tick) == b {
		return true
	}
	for level := 1; level < levels; level++ {
		if b == w.bucketAt(level, w.current) && b == w.bucketAt(level, tick) {
			return true
		}
	}
	return false
}
