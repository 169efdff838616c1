package store

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/delivery"
)

// A segment can lose its last message between two steps of the copy, and is removed at once. The copy has to let go of it.
func TestCopyForwardOutlivesTheSegmentItReads(t *testing.T) {
	const messageBytes = 200 << 10
	var onMove atomic.Pointer[func()]
	fl := osFiles()
	write := fl.write
	fl.write = func(f *os.File, b []byte, off int64) (int, error) {
		if move := onMove.Load(); move != nil && len(b) > moveBytes {
			onMove.Store(nil)
			(*move)()
		}
		return write(f, b, off)
	}
	// Larger than the window of a scan, so that the copy reads the file again after its segment went.
	cfg := Config{Dir: t.TempDir(), files: fl, SegmentBytes: 2 * scanWindowBytes, QueueMessagesMax: 1 << 20, QueueBytesMax: 1 << 30,
		CommitDelay: 50 * time.Microsecond, LazyDelay: time.Millisecond}
	l := open(t, cfg)
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	text := string(make([]byte, messageBytes))
	n := 0
	put := func() delivery.Ending {
		n++
		return delivery.Ending{Ref: store1(t, l, q, fmt.Sprint("m", n), text), Status: delivery.StatusAcked}
	}
	end := func(e ...delivery.Ending) { l.End(e, time.Now().UnixMilli()) }
	// fill keeps the messages of one segment and writes others behind it until they are copied.
	fill := func() (kept []delivery.Ending) {
		moved := l.Stats().Moved
		for range cfg.SegmentBytes / messageBytes {
			kept = append(kept, put())
		}
		for i := 0; l.Stats().Moved == moved; i++ {
			if i == 1000 {
				t.Fatal("nothing is copied forward any more")
			}
			end(put())
		}
		return kept
	}
	var first []delivery.Ending
	for range cfg.SegmentBytes / messageBytes {
		first = append(first, put())
	}
	move := func() { end(slices.Clone(first)...) }
	onMove.Store(&move)
	for i := 0; onMove.Load() != nil && i < 1000; i++ {
		end(put())
	}
	if onMove.Load() != nil {
		t.Fatal("nothing was copied forward")
	}
	end(fill()...)
}
