package scheduler

import "fmt"

// Check walks the whole wheel and panics with a clear text when something does not hold: links that do not match, a timer in
// a bucket that comes round too late for it, a bucket bit that is wrong, a count that is off. For tests and simulations.
func (w *Wheel) Check() {
	linked, armed := 0, 0
	for b := range uint32(bucketCount) {
		l, a := w.checkBucket(b)
		linked += l
		armed += a
	}
	if armed != w.armed {
		panic(fmt.Sprintf("scheduler: %d timers are linked and armed, %d counted", armed, w.armed))
	}
	for _, c := range w.chunks {
		if c == nil {
			continue
		}
		for i := range c {
			if c[i].linked() {
				linked--
			} else if c[i].due != 0 {
				panic("scheduler: a timer is armed and lies in no bucket")
			}
		}
	}
	if linked != 0 {
		panic(fmt.Sprintf("scheduler: buckets and nodes disagree about %d links", linked))
	}
}

func (w *Wheel) checkBucket(b uint32) (linked, armed int) {
	head := headBase + b
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
		if own := n.bucket(); own != b && (b != bucketTurned || own != bucketOverflow) {
			panic(fmt.Sprintf("scheduler: timer %d says it lies in bucket %d, not %d", i, own, b))
		}
		if tick := n.tick(); tick != 0 {
			armed++
			w.checkTick(i, b, tick)
		}
		if linked++; linked > len(w.chunks)*nodesPerChunk {
			panic(fmt.Sprintf("scheduler: bucket %d is a ring without its head", b))
		}
	}
	if (linked > 0) != w.has(b) {
		panic(fmt.Sprintf("scheduler: bucket %d holds %d timers and its bit says %t", b, linked, w.has(b)))
	}
	return linked, armed
}

func (w *Wheel) checkTick(i, bucket uint32, tick int64) {
	if tick < w.current {
		panic(fmt.Sprintf("scheduler: timer %d of tick %d was missed, the wheel is at %d", i, tick, w.current))
	}
	if bucket != bucketTurned && tick < w.bucketStart(bucket) {
		panic(fmt.Sprintf("scheduler: timer %d of tick %d lies in bucket %d, which comes round at %d", i, tick, bucket, w.bucketStart(bucket)))
	}
}
