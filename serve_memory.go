package main

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// trimmer gives memory back to the system that a node needed for a burst, of logins for example, and does not need any more. The
// collector by itself runs when the heap has doubled, so a node at rest would keep the garbage of its last busy second for minutes,
// and for ever the room for as much again. While the node is busy the trimmer does nothing.
type trimmer struct {
	stop, done chan struct{}

	allocated uint64 // at the last look
	left      uint64 // what the last trim could not give back
	quiet     int    // looks in a row that saw next to nothing allocated
}

const (
	trimEvery     = 2 * time.Second
	trimQuiet     = 2         // looks
	trimQuietMax  = 256 << 10 // bytes allocated between two looks of a quiet node
	trimWorth     = 1 << 20   // bytes
	trimWorthPart = 20        // and of what lives one part in so many
)

// startTrimmer starts one.
func startTrimmer() *trimmer {
	t := &trimmer{stop: make(chan struct{}), done: make(chan struct{})}
	go t.run()
	return t
}

// end ends it and waits for that.
func (t *trimmer) end() {
	close(t.stop)
	<-t.done
}

func (t *trimmer) run() {
	defer close(t.done)
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		if t.due(readHeap()) {
			debug.FreeOSMemory()
			after := readHeap()
			t.left = after.spare()
		}
	}
}

// heap is what the runtime tells of it, in bytes.
type heap struct {
	allocated uint64 // since the start
	objects   uint64 // garbage too
	live      uint64 // at the last collection
	free      uint64 // no object in it, and not given back
}

func readHeap() heap {
	samples := [...]metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples[:])
	return heap{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64(), samples[3].Value.Uint64()}
}

// spare is what a trim would give back, about.
func (h *heap) spare() uint64 { return h.free + h.objects - min(h.objects, h.live) }

// due reports whether a trim is worth its price, which is one collection.
func (t *trimmer) due(h heap) bool {
	if h.allocated-t.allocated > trimQuietMax {
		t.quiet = 0
	} else {
		t.quiet++
	}
	t.allocated = h.allocated
	return t.quiet >= trimQuiet && h.spare() > t.left+max(trimWorth, h.live/trimWorthPart)
}
