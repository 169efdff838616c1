package store

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// countedReads is the operating system's disk, counting the reads of segments.
func countedReads() (fl *files, reads, bytes *atomic.Int64) {
	fl, reads, bytes = osFiles(), new(atomic.Int64), new(atomic.Int64)
	read := fl.read
	fl.read = func(f *os.File, b []byte, off int64) (int, error) {
		reads.Add(1)
		bytes.Add(int64(len(b)))
		return read(f, b, off)
	}
	return fl, reads, bytes
}

func cacheBytes(l *Local) int64 {
	_, bytes := l.cache.stats()
	return bytes
}

func cacheTick(l *Local) uint32 {
	l.cache.mu.Lock()
	defer l.cache.mu.Unlock()
	return l.cache.tick
}

// readText is the command of the message of ref.
func readText(t *testing.T, l *Local, ref delivery.Ref) string {
	t.Helper()
	var b delivery.Buffer
	item, ok, err := l.Read(&b, ref)
	if !ok || err != nil {
		t.Fatalf("message %d is not read: %v", ref.Seq, err)
	}
	return string(item.Command)
}

func TestManyUsersWhoReadAtOnceShareTheReads(t *testing.T) {
	const users, each = 100, 40
	fl, reads, _ := countedReads()
	l := open(t, Config{Dir: t.TempDir(), files: fl})
	defer shut(t, l)
	qs := fill(t, l, users*each, users)
	var b delivery.Buffer
	for _, q := range qs {
		items, err := l.Next(&b, q, codec.PriorityNormal, 0, 128, 1<<20)
		if err != nil || len(items) != each {
			t.Fatal(len(items), err)
		}
	}
	count, bytes := l.cache.stats()
	if got := reads.Load(); got > users*each/10 || count.hits < users*each*8/10 || bytes == 0 {
		t.Fatalf("%d reads of the disk for %d messages, %+v", got, users*each, count)
	}
	for range cacheKeepTicks + 2 {
		l.cache.rest()
	}
	if cacheBytes(l) != 0 || l.cache.missed != nil {
		t.Fatal("an idle cache keeps its memory")
	}
}

func TestOneUserWithASmallBacklogReadsNoBlocks(t *testing.T) {
	const users, each = 500, 10
	fl, _, bytes := countedReads()
	l := open(t, Config{Dir: t.TempDir(), files: fl})
	defer shut(t, l)
	qs := fill(t, l, users*each, users)
	items, err := l.Next(new(delivery.Buffer), qs[7], codec.PriorityNormal, 0, 128, 1<<20)
	if err != nil || len(items) != each {
		t.Fatal(len(items), err)
	}
	if got := bytes.Load(); got > each*1000 || cacheBytes(l) != 0 {
		t.Fatalf("%d bytes read for %d messages", got, each)
	}
}

// The end of the log is read while it grows, also over bytes that a failed write left there.
func TestABlockIsNotServedAsItWasBeforeTheLogGrew(t *testing.T) {
	var broken atomic.Bool
	fl := osFiles()
	write := fl.write
	fl.write = func(f *os.File, b []byte, off int64) (int, error) {
		if broken.Load() && strings.HasSuffix(f.Name(), segmentSuffix) {
			_, _ = write(f, []byte(strings.Repeat("?", len(b))), off)
			return 0, syscall.ENOSPC
		}
		return write(f, b, off)
	}
	// The truncation after it fails as well, so that the rubbish stays until it is written over.
	truncate := fl.truncate
	fl.truncate = func(f *os.File, size int64) error {
		if broken.Load() {
			return syscall.EIO
		}
		return truncate(f, size)
	}
	l := open(t, Config{Dir: t.TempDir(), files: fl, blockBytes: 4 << 10, CommitDelay: 20 * time.Microsecond, RetryDelay: time.Millisecond})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	var refs []delivery.Ref
	for i := range 200 {
		refs = append(refs, store1(t, l, q, fmt.Sprint(i), fmt.Sprintf("text %d", i)))
		if i%20 == 10 {
			broken.Store(true)
			a := newAnswers()
			now := time.Now().UnixMilli()
			if _, r := l.Append(q, make([]byte, 9000), delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 0); r != codec.ResultAccepted || a.wait(0) != codec.ResultStorageFull {
				t.Fatal("the write did not fail")
			}
			eventually(t, "the store knows that its disk is full", func() bool { return l.Stats().Full })
		}
		for range 3 { // the second miss reads the block
			for j := max(0, i-3); j <= i; j++ {
				if got := readText(t, l, refs[j]); got != fmt.Sprintf("text %d", j) {
					t.Fatalf("message %d of %d: %q", j, i, got)
				}
			}
		}
		if broken.Swap(false) {
			eventually(t, "there is room again", func() bool { return !l.Stats().Full })
		}
	}
	if count, _ := l.cache.stats(); count.hits == 0 {
		t.Fatal("the cache was not used")
	}
}

func TestBlocksOfARemovedSegmentGo(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), SegmentBytes: 16 << 10, blockBytes: 2 << 10, ReadCacheBytes: 64 << 10, CommitDelay: 20 * time.Microsecond,
		LazyDelay: time.Millisecond})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	var refs []delivery.Ref
	for i := 0; l.Stats().Segments < 3; i++ {
		refs = append(refs, store1(t, l, q, fmt.Sprint(i), strings.Repeat("x", 100)))
	}
	for range 2 {
		for _, ref := range refs[:20] {
			readText(t, l, ref)
		}
	}
	if cacheBytes(l) == 0 {
		t.Fatal("the cache was not used")
	}
	hitAt := cacheTick(l)
	var ends []delivery.Ending
	for _, ref := range refs {
		ends = append(ends, delivery.Ending{Ref: ref, Status: delivery.StatusAcked})
	}
	l.End(ends, time.Now().UnixMilli())
	eventually(t, "the first segment is removed, and what was kept of it", func() bool { return l.Stats().SegmentsRemoved > 0 && cacheBytes(l) == 0 })
	if cacheTick(l)-hitAt > cacheKeepTicks {
		t.Fatal("it went only because nobody used it")
	}
}

// A block that cannot be read costs nobody its message.
func TestABlockThatCannotBeReadIsLeftOut(t *testing.T) {
	fl := osFiles()
	read := fl.read
	fl.read = func(f *os.File, b []byte, off int64) (int, error) {
		if len(b) == cacheBlockBytes {
			return 0, syscall.EIO
		}
		return read(f, b, off)
	}
	l := open(t, Config{Dir: t.TempDir(), files: fl})
	defer shut(t, l)
	var b delivery.Buffer
	for _, q := range fill(t, l, 2000, 100) {
		if items, err := l.Next(&b, q, codec.PriorityNormal, 0, 128, 1<<20); err != nil || len(items) != 20 {
			t.Fatal(len(items), err)
		}
	}
	if count, _ := l.cache.stats(); count.loads != 0 || cacheBytes(l) != 0 || l.Stats().Lost != 0 {
		t.Fatalf("%+v, %d bytes kept", count, cacheBytes(l))
	}
}

// fetchBlock is a reader of the first bytes of a block and reports whether it read the whole block for them.
func fetchBlock(c *readCache, num uint64, at int64) (loaded bool) {
	var dst [8]byte
	b, _ := c.take(dst[:], num, at*c.blockBytes)
	if b != nil {
		c.loaded(b, true)
	}
	return b != nil
}

func TestBlocksThatBringNoHitsAreNotReadForLong(t *testing.T) {
	c := newReadCache(16<<10, 1<<10)
	loads := 0
	pass := func() {
		for at := range int64(cacheMissed / 4) {
			if fetchBlock(c, 1, at) {
				loads++
			}
		}
	}
	for range 10 {
		pass()
	}
	if paid := int(c.count.hits) / cacheLoadPrice; loads > cacheLoadsFree+paid || loads == 0 {
		t.Fatalf("%d blocks were read, %d were paid for by hits", loads, paid)
	}
	c.rest()
	pass()
	if loads <= cacheLoadsFree/2 {
		t.Fatal("it is never tried again")
	}
	if n := int64(len(c.blocks)) * c.blockBytes; n > 16<<10 {
		t.Fatalf("%d bytes kept", n)
	}
}

func TestAMissLongAgoIsForgotten(t *testing.T) {
	c := newReadCache(16<<10, 1<<10)
	fetchBlock(c, 1, 1)
	c.rest()
	c.rest()
	if fetchBlock(c, 1, 1) {
		t.Fatal("read whole at its first miss")
	}
	if !fetchBlock(c, 1, 1) {
		t.Fatal("not read at its second miss")
	}
}

func TestABlockUnderWayIsWaitedForByNobody(t *testing.T) {
	c := newReadCache(1<<10, 1<<10)
	var dst [8]byte
	c.take(dst[:], 1, 0)
	b, _ := c.take(dst[:], 1, 0)
	if b == nil {
		t.Fatal("not read at its second miss")
	}
	c.drop(1) // while it is read
	for range 3 {
		if other, ok := c.take(dst[:], 1, 0); other != nil || ok {
			t.Fatal("somebody else got it")
		}
		if other, _ := c.take(dst[:], 1, 1<<10); other != nil { // there is room for one block only
			t.Fatal("its memory was given to another")
		}
	}
	copy(b.data, "12345678")
	c.loaded(b, true)
	if _, ok := c.take(dst[:], 1, 0); !ok || string(dst[:]) != "12345678" {
		t.Fatal("not there once it was read")
	}
}

// Readers, evictions, idle turns and removals at once: each reader gets the bytes of its place.
func TestTheReadCacheUnderManyReaders(t *testing.T) {
	c := newReadCache(8<<10, 1<<10)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			var dst [200]byte
			for i := range 20_000 {
				num, off := uint64(1+i%2), int64((i*(w+3)*97)%(12<<10))
				for {
					b, ok := c.take(dst[:], num, off)
					if b != nil {
						for j := range b.data {
							b.data[j] = placeByte(b.key.num, b.key.at*c.blockBytes+int64(j))
						}
						c.loaded(b, i%7 != 0)
						continue
					}
					for j := range dst {
						if ok && dst[j] != placeByte(num, off+int64(j)) {
							t.Errorf("segment %d at %d: wrong", num, off)
							return
						}
					}
					break
				}
				switch {
				case i%1000 == 0:
					c.rest()
				case i%777 == 0:
					c.drop(num)
				}
			}
		})
	}
	wg.Wait()
	if count, _ := c.stats(); count.hits == 0 || count.loads == 0 {
		t.Fatalf("not used: %+v", count)
	}
}

func placeByte(num uint64, off int64) byte { return byte(mix(num<<32 + uint64(off))) }
