package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// faultyDisk is the operating system's disk with a bad day.
type faultyDisk struct {
	mu       sync.Mutex
	full     bool
	syncFail bool
	short    bool // writes take only a part at a time
	dead     bool // nothing reaches the disk any more: the power is off
	written  map[string]int64
	synced   map[string]int64
}

var errPower = errors.New("no power")

func (d *faultyDisk) files() *files {
	d.written, d.synced = map[string]int64{}, map[string]int64{}
	fl := osFiles()
	create, write, sync, rename := fl.create, fl.write, fl.sync, fl.rename
	fl.create = func(path string) (*os.File, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.full {
			return nil, &os.PathError{Op: "open", Path: path, Err: syscall.ENOSPC}
		}
		if d.dead {
			return nil, errPower
		}
		return create(path)
	}
	fl.write = func(f *os.File, b []byte, off int64) (int, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		switch {
		case d.dead:
			return len(b), nil
		case d.full:
			n, _ := write(f, b[:len(b)/2], off)
			return n, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
		case d.short && len(b) > 1:
			b = b[:1+rand.IntN(len(b)-1)]
		}
		n, err := write(f, b, off)
		d.written[f.Name()] = max(d.written[f.Name()], off+int64(n))
		return n, err
	}
	fl.sync = func(f *os.File) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		switch {
		case d.dead:
			return errPower
		case d.syncFail:
			return syscall.EIO
		}
		d.synced[f.Name()] = d.written[f.Name()]
		return sync(f)
	}
	fl.rename = func(from, to string) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.written[to], d.synced[to] = d.written[from], d.synced[from]
		return rename(from, to)
	}
	return fl
}

func (d *faultyDisk) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// cut turns the power off: what was not synced is gone, or some of it is.
func (d *faultyDisk) cut(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, n := range d.written {
		lost := n - d.synced[name]
		if lost <= 0 {
			continue
		}
		keep := d.synced[name] + rand.Int64N(lost+1)
		if err := os.Truncate(name, keep); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if rand.IntN(2) == 0 { // the length may be there and the content not
			_ = os.Truncate(name, n)
		}
	}
}

// H3, R18: with the disk full nothing accepted is lost, publishers are refused, ends still work, and it passes by itself.
func TestH3AFullDiskRefusesAndRecoversByItself(t *testing.T) {
	disk := &faultyDisk{}
	cfg := Config{Dir: t.TempDir(), files: disk.files(), RetryDelay: 5 * time.Millisecond, LazyDelay: time.Millisecond}
	l := open(t, cfg)
	q := must(t, l, "alice", "")[0]
	var refs []delivery.Ref
	for i := range 10 {
		refs = append(refs, store1(t, l, q, fmt.Sprint("before", i), fmt.Sprint("before", i)))
	}
	disk.set(func() { disk.full = true })
	now := time.Now().UnixMilli()
	meta := delivery.Meta{MessageID: []byte("during"), AcceptedMs: now, ExpireAtMs: now + dayMs}
	a := newAnswers()
	if _, r := l.Append(q, []byte("during"), meta, a, 0); r != codec.ResultAccepted {
		t.Fatalf("the first append finds it out later: %d", r)
	}
	if r := a.wait(0); r != codec.ResultStorageFull {
		t.Fatalf("its publisher was told %d", r)
	}
	eventually(t, "appends are refused", func() bool {
		_, r := l.Append(q, []byte("during"), meta, nil, 0)
		return r == codec.ResultStorageFull
	})
	if _, dup, _ := l.Targets(nil, []byte("alice"), nil, []byte("during"), now); dup {
		t.Fatal("a refused message counts as known")
	}
	if n := l.End([]delivery.Ending{{Ref: refs[0], Status: delivery.StatusAcked}}, now); n != 1 {
		t.Fatal("ends do not work with the disk full")
	}
	want := texts(t, l, q)
	if len(want) != 9 || balanced(t, l).Live != 9 {
		t.Fatalf("%d messages, %+v", len(want), balanced(t, l))
	}
	disk.set(func() { disk.full = false })
	eventually(t, "appends are taken again", func() bool {
		_, r := l.Append(q, []byte("after"), delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
		return r == codec.ResultAccepted
	})
	want = append(want, "after")
	shut(t, l)
	l = open(t, Config{Dir: cfg.Dir})
	defer shut(t, l)
	if got := texts(t, l, must(t, l, "alice", "")[0]); !slices.Equal(got, want) {
		t.Fatalf("after a restart: %q, want %q", got, want)
	}
	if l.Stats().Damaged != 0 {
		t.Fatal("the failed writes left something behind")
	}
}

// H3, R18: a node that stopped for want of room must start again, or what fills the disk can never be delivered.
func TestH3AStartOnAFullDiskDeliversAndRefuses(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	if _, err := l.Claim([]byte("alice"), []byte("phone"), time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint("m", i))
		store1(t, l, must(t, l, "alice", "")[0], want[i], want[i])
	}
	killed := copyDir(t, dir)
	flip(t, lastSegment(t, killed), fileSize(t, lastSegment(t, killed))-frameAlign) // and the last write was torn
	shut(t, l)
	for name, dir := range map[string]string{"closed": dir, "killed": killed} {
		disk := &faultyDisk{full: true}
		l := open(t, Config{Dir: dir, files: disk.files(), RetryDelay: 5 * time.Millisecond})
		q := must(t, l, "alice", "")[0]
		got := texts(t, l, q)
		if len(got) < 9 || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("%s: %q", name, got)
		}
		now := time.Now().UnixMilli()
		meta := delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}
		if _, r := l.Append(q, []byte("new"), meta, nil, 0); r != codec.ResultStorageFull {
			t.Fatalf("%s: an append on a full disk: %d", name, r)
		}
		items, err := l.Next(new(delivery.Buffer), q, codec.PriorityNormal, 0, 10, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		newest := items[len(items)-1].Ref.Seq
		if n := l.End([]delivery.Ending{{Ref: items[0].Ref, Status: delivery.StatusAcked}}, now); n != 1 {
			t.Fatalf("%s: ends do not work", name)
		}
		// A crash now: nobody knows what was sent since the start.
		again := open(t, Config{Dir: copyDir(t, dir)})
		for _, it := range mustNext(t, again, must(t, again, "alice", "")[0]) {
			if !it.Sent {
				t.Fatalf("%s: the mark of a good end was left behind", name)
			}
		}
		shut(t, again)
		disk.set(func() { disk.full = false })
		var ref delivery.Ref
		eventually(t, "appends are taken again", func() (ok bool) {
			var r codec.Result
			ref, r = l.Append(q, []byte("new"), meta, nil, 0)
			return r == codec.ResultAccepted
		})
		if ref.Seq>>epochShift <= newest>>epochShift {
			t.Fatalf("%s: seq %x after %x is of the same start", name, ref.Seq, newest)
		}
		shut(t, l)
		l = open(t, Config{Dir: dir})
		if after := texts(t, l, must(t, l, "alice", "")[0]); !slices.Equal(after, append(got[1:], "new")) {
			t.Fatalf("%s: in the end %q", name, after)
		}
		shut(t, l)
	}
}

func mustNext(t *testing.T, l *Local, q delivery.QueueID) []delivery.Item {
	t.Helper()
	items, err := l.Next(new(delivery.Buffer), q, codec.PriorityNormal, 0, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// What a killed process had written is answered as durable after the start: a power cut must not take it then.
func TestAStartSyncsWhatItFinds(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	store1(t, l, must(t, l, "alice", "")[0], "m", "x")
	killed := copyDir(t, dir)
	shut(t, l)
	disk := &faultyDisk{}
	fl := disk.files()
	last := lastSegment(t, killed)
	disk.written[last] = fileSize(t, last) // in the kernel's memory only
	l = open(t, Config{Dir: killed, files: fl})
	defer shut(t, l)
	disk.set(func() {
		if disk.synced[last] != disk.written[last] {
			t.Errorf("%d of %d bytes are durable", disk.synced[last], disk.written[last])
		}
	})
}

// On a full disk sending goes on, and each attempt leaves a note: only the last one of a message may be kept.
func TestNotesOfAFullDiskAreBounded(t *testing.T) {
	disk := &faultyDisk{}
	cfg := Config{Dir: t.TempDir(), files: disk.files(), RetryDelay: time.Millisecond, LazyDelay: time.Millisecond}
	l := open(t, cfg)
	q := must(t, l, "alice", "")[0]
	a, b := store1(t, l, q, "a", "a"), store1(t, l, q, "b", "b")
	disk.set(func() { disk.full = true })
	const notes = 300_000
	for i := range notes {
		l.Note(a, uint16(i/10), i > 5)
	}
	l.Note(b, 7, false)
	eventually(t, "the notes are squeezed", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.full && l.flushing == nil && len(l.open.notes) > 0 && len(l.open.notes) < notesSlackBytes
	})
	disk.set(func() { disk.full = false })
	eventually(t, "there is room again", func() bool { return !l.Stats().Full })
	shut(t, l)
	l = open(t, Config{Dir: cfg.Dir})
	defer shut(t, l)
	items := mustNext(t, l, must(t, l, "alice", "")[0])
	if len(items) != 2 || items[0].Attempts != (notes-1)/10 || !items[0].Sent || items[1].Attempts != 7 || items[1].Sent {
		t.Fatalf("got %+v", items)
	}
}

func TestAMessageThatEndedWhileItsWriteFailedIsAccepted(t *testing.T) {
	disk := &faultyDisk{}
	l := open(t, Config{Dir: t.TempDir(), files: disk.files(), RetryDelay: time.Hour, CommitDelay: 200 * time.Millisecond})
	q := must(t, l, "alice", "")[0]
	disk.set(func() { disk.full = true })
	now := time.Now().UnixMilli()
	a := newAnswers()
	acked, _ := l.Append(q, []byte("x"), delivery.Meta{MessageID: []byte("acked"), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 0)
	dead, _ := l.Append(q, []byte("x"), delivery.Meta{MessageID: []byte("dead"), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 1)
	l.Append(q, []byte("x"), delivery.Meta{MessageID: []byte("other"), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 2)
	l.End([]delivery.Ending{{Ref: acked, Status: delivery.StatusAcked}, {Ref: dead, Status: delivery.StatusDead}}, now)
	if !l.Join([]byte("alice"), []byte("dead"), a, 3) {
		t.Fatal("the repeat of a letter that is not written does not wait")
	}
	if a.wait(0) != codec.ResultAccepted || a.wait(2) != codec.ResultStorageFull {
		t.Fatalf("got %v", a.got)
	}
	// A dead letter is to be kept, so its publisher was not answered before it was; now it is refused, and may come again.
	if a.wait(1) != codec.ResultStorageFull || a.wait(3) != codec.ResultStorageFull {
		t.Fatalf("the publishers of a letter that could not be kept were told %d and %d", a.wait(1), a.wait(3))
	}
	if _, dup, _ := l.Targets(nil, []byte("alice"), nil, []byte("dead"), now); dup {
		t.Fatal("a letter that could not be kept counts as known")
	}
	if g := balanced(t, l); g.Acked != 1 || g.Live != 0 {
		t.Fatalf("got %+v", g)
	}
	disk.set(func() { disk.full = false })
	shut(t, l)
}

func TestShortWritesAreCompleted(t *testing.T) {
	disk := &faultyDisk{short: true}
	cfg := Config{Dir: t.TempDir(), files: disk.files()}
	l := open(t, cfg)
	q := must(t, l, "alice", "")[0]
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i, strings.Repeat("z", 2000)))
		store1(t, l, q, fmt.Sprint(i), want[i])
	}
	shut(t, l)
	l = open(t, Config{Dir: cfg.Dir})
	defer shut(t, l)
	if got := texts(t, l, must(t, l, "alice", "")[0]); !slices.Equal(got, want) || l.Stats().Damaged != 0 {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
}

func TestASyncThatFailsStopsTheStoreForGood(t *testing.T) {
	disk := &faultyDisk{}
	cfg := Config{Dir: t.TempDir(), files: disk.files()}
	l := open(t, cfg)
	q := must(t, l, "alice", "")[0]
	store1(t, l, q, "before", "before")
	disk.set(func() { disk.syncFail = true })
	now := time.Now().UnixMilli()
	meta := delivery.Meta{AcceptedMs: now, ExpireAtMs: now + dayMs}
	a := newAnswers()
	l.Append(q, []byte("during"), meta, a, 0)
	if r := a.wait(0); r != codec.ResultUnavailable {
		t.Fatalf("the publisher was told %d", r)
	}
	err := <-l.Failed()
	if !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v", err)
	}
	disk.set(func() { disk.syncFail = false })
	if _, r := l.Append(q, []byte("after"), meta, a, 1); r != codec.ResultUnavailable {
		t.Fatalf("an append after it: %d", r)
	}
	if got := texts(t, l, q); !slices.Equal(got, []string{"before"}) {
		t.Fatalf("still readable: %q", got)
	}
	balanced(t, l)
	if err := l.Close(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("close says %v", err)
	}
	l = open(t, Config{Dir: cfg.Dir})
	defer shut(t, l)
	if got := texts(t, l, must(t, l, "alice", "")[0]); len(got) == 0 || got[0] != "before" {
		t.Fatalf("after a restart: %q", got)
	}
}

// D2: the one who waits on Failed takes the error out of the channel; that must not make the end look like a good one.
func TestD2AStoreThatFailedIsNotClosedAsClean(t *testing.T) {
	disk := &faultyDisk{}
	cfg := Config{Dir: t.TempDir(), files: disk.files()}
	l := open(t, cfg)
	if _, err := l.Claim([]byte("alice"), []byte("phone"), time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	q := must(t, l, "alice", "")[0]
	ref := store1(t, l, q, "m", "may have been sent")
	disk.set(func() { disk.syncFail = true })
	l.Note(ref, 1, true)
	if err := <-l.Failed(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v", err)
	}
	disk.set(func() { disk.syncFail = false })
	if err := l.Close(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("close says %v, not what stopped the store", err)
	}
	if fm := readFormat(t, cfg.Dir); fm.clean {
		t.Fatal("the directory is marked as closed well")
	}
}

func readFormat(t *testing.T, dir string) format {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, formatFile))
	if err != nil {
		t.Fatal(err)
	}
	fm, err := parseFormat(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return fm
}

func TestNothingAnsweredIsLostByAPowerCut(t *testing.T) {
	dir := t.TempDir()
	want := map[string]bool{}
	for round := range 10 {
		disk := &faultyDisk{}
		l := open(t, Config{Dir: dir, files: disk.files(), SegmentBytes: 16 << 10, StorageBytesMax: 1 << 27, CommitDelay: 100 * time.Microsecond})
		q := must(t, l, "alice", "")[0]
		a := newAnswers()
		now := time.Now().UnixMilli()
		stop := 50 + rand.IntN(100)
		refs := map[int]delivery.Ref{}
		for i := range 200 {
			id := fmt.Sprint(round, "-", i)
			ref, r := l.Append(q, []byte(id+strings.Repeat(" ", rand.IntN(300))), delivery.Meta{MessageID: []byte(id), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, i)
			if r != codec.ResultAccepted {
				t.Fatal(r)
			}
			refs[i] = ref
			if i%10 == 0 {
				a.wait(i)
			}
			if i == stop {
				break
			}
		}
		for i := 0; i < stop-20; i += 3 {
			l.End([]delivery.Ending{{Ref: refs[i], Status: delivery.StatusAcked}}, now)
		}
		a.mu.Lock() // from here on answers do not count: the power goes
		for i := range a.got {
			if i >= stop-20 || i%3 != 0 {
				want[fmt.Sprint(round, "-", i)] = true
			}
		}
		disk.set(func() { disk.dead = true })
		a.mu.Unlock()
		_ = l.Close() // says that there is no power
		disk.cut(t)
		l = open(t, Config{Dir: dir})
		got := map[string]bool{}
		for _, text := range texts(t, l, must(t, l, "alice", "")[0]) {
			got[strings.TrimRight(text, " ")] = true
		}
		for id := range want {
			if !got[id] {
				t.Fatalf("round %d: %s was answered and is gone", round, id)
			}
		}
		balanced(t, l)
		shut(t, l)
	}
}

func TestIntervalSyncAnswersBeforeTheSync(t *testing.T) {
	disk := &faultyDisk{}
	l := open(t, Config{Dir: t.TempDir(), files: disk.files(), Sync: SyncInterval, SyncInterval: time.Hour})
	q := must(t, l, "alice", "")[0]
	for i := range 20 {
		store1(t, l, q, fmt.Sprint(i), "x")
	}
	if n := l.Stats().Syncs; n > 1 {
		t.Fatalf("%d syncs", n)
	}
	shut(t, l)
	if n := disk.synced[lastSegment(t, l.cfg.Dir)]; n != disk.written[lastSegment(t, l.cfg.Dir)] {
		t.Fatalf("close left something unsynced: %d", n)
	}
}

// The memory of messages that end while their batch is being written is given back before the batch is finished; the ones still
// in the open batch before it is cut.
func TestAFloodEndsWhileItsBatchIsWritten(t *testing.T) {
	t.Parallel()
	fl := osFiles()
	sync := fl.sync
	held, entered := make(chan struct{}), make(chan struct{}, 1)
	var running atomic.Bool
	fl.sync = func(f *os.File) error {
		if running.Load() {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-held
		}
		return sync(f)
	}
	l := open(t, Config{Dir: t.TempDir(), files: fl, QueueMessagesMax: 1 << 20})
	running.Store(true)
	q := must(t, l, "alice", "")[0]
	now := time.Now().UnixMilli()
	var ends []delivery.Ending
	put := func(n int) {
		for range n {
			id := fmt.Appendf(nil, "m%d", len(ends))
			ref, r := l.Append(q, []byte("x"), delivery.Meta{MessageID: id, AcceptedMs: now, ExpireAtMs: now + dayMs}, nil, 0)
			if r != codec.ResultAccepted {
				t.Fatal(r)
			}
			ends = append(ends, delivery.Ending{Ref: ref, Status: delivery.StatusAcked})
		}
	}
	put(2 * chunkSlots)
	<-entered // some of them are being written
	put(2 * chunkSlots)
	slices.Reverse(ends)
	for part := range slices.Chunk(ends, 100) {
		if won := l.End(part, now); won != len(part) {
			t.Fatalf("%d of %d ended", won, len(part))
		}
	}
	close(held)
	shut(t, l)
}
