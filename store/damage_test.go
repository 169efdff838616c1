package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// stored is where one message of a prepared directory lies.
type stored struct {
	text     string
	file     string
	from, to int64
}

// prepare fills a directory with n messages of one user in segments of a size, closes it, and says where each of them lies.
func prepare(t *testing.T, n int, segmentBytes int64) (dir string, all []stored) {
	t.Helper()
	dir = t.TempDir()
	l := open(t, Config{Dir: dir, SegmentBytes: segmentBytes, CommitDelay: 20 * time.Microsecond})
	q := must(t, l, "alice", "")[0]
	for i := range n {
		text := fmt.Sprint("text ", i, " ", strings.Repeat("y", i*37%500))
		ref := store1(t, l, q, fmt.Sprint("m", i), text)
		l.mu.Lock()
		e := l.slab.at(ref.Slot)
		all = append(all, stored{text: text, file: filepath.Base(l.segs.slots[e.seg].path), from: int64(e.off), to: int64(e.off) + int64(e.bytes())})
		l.mu.Unlock()
	}
	shut(t, l)
	return dir, all
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// reopened returns what alice's queue holds after a restart on dir.
func reopened(t *testing.T, dir string) ([]string, Stats) {
	t.Helper()
	l := open(t, Config{Dir: dir})
	defer shut(t, l)
	got := texts(t, l, must(t, l, "alice", "")[0])
	balanced(t, l)
	// It goes on working.
	store1(t, l, must(t, l, "alice", "")[0], "new", "new")
	return got, l.Stats()
}

func TestACutLastSegmentKeepsAllBeforeTheCut(t *testing.T) {
	dir, all := prepare(t, 60, 1<<20)
	last := lastSegment(t, dir)
	st, err := os.Stat(last)
	if err != nil {
		t.Fatal(err)
	}
	for range 25 {
		cut := rand.Int64N(st.Size() + 1)
		broken := copyDir(t, dir)
		path := filepath.Join(broken, filepath.Base(last))
		if err := os.Truncate(path, cut); err != nil {
			t.Fatal(err)
		}
		if rand.IntN(2) == 0 { // the file may be longer than what was written of it
			if err := os.Truncate(path, cut+rand.Int64N(10_000)); err != nil {
				t.Fatal(err)
			}
		}
		var want, whole []string
		for _, s := range all {
			if s.to <= cut {
				want = append(want, s.text)
			}
			if s.to-frameAlign < cut { // cut inside the padding, and zeros behind it make it whole again
				whole = append(whole, s.text)
			}
		}
		if got, _ := reopened(t, broken); !slices.Equal(got, want) && !slices.Equal(got, whole) {
			t.Fatalf("cut at %d: %d messages, want %d", cut, len(got), len(want))
		}
	}
}

func TestAFlippedByteCostsOnlyItsOwnRecord(t *testing.T) {
	dir, all := prepare(t, 200, 16<<10)
	for range 25 {
		victim := all[rand.IntN(len(all))]
		at := victim.from + rand.Int64N(victim.to-victim.from)
		broken := copyDir(t, dir)
		path := filepath.Join(broken, victim.file)
		flip(t, path, at)
		var want []string
		for _, s := range all {
			if s != victim {
				want = append(want, s.text)
			}
		}
		got, st := reopened(t, broken)
		if slices.Equal(got, textsOf(all)) {
			continue // it hit the padding
		}
		if !slices.Equal(got, want) {
			t.Fatalf("a flip at %s %d: %d messages, want %d", victim.file, at, len(got), len(want))
		}
		last := victim.file == filepath.Base(lastSegment(t, dir)) && victim == all[len(all)-1]
		if st.Damaged == 0 && !last {
			t.Fatalf("a flip at %s %d passed in silence", victim.file, at)
		}
	}
}

func textsOf(all []stored) (out []string) {
	for _, s := range all {
		out = append(out, s.text)
	}
	return out
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1 << rand.IntN(8)
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestDamageWhileRunningEndsTheMessageAndNothingElse(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir()})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	var refs []delivery.Ref
	for i := range 5 {
		refs = append(refs, store1(t, l, q, fmt.Sprint("m", i), fmt.Sprint("text", i)))
	}
	l.mu.Lock()
	e := l.slab.at(refs[2].Slot)
	path, off := l.segs.slots[e.seg].path, int64(e.off)
	l.mu.Unlock()
	flip(t, path, off+putHeadBytes+3)
	if got := texts(t, l, q); !slices.Equal(got, []string{"text0", "text1", "text3", "text4"}) {
		t.Fatalf("got %q", got)
	}
	found := l.Find("m2")
	if len(found) != 1 || found[0].Status != delivery.StatusDead || found[0].Reason != delivery.ReasonUndecodable {
		t.Fatalf("got %+v", found)
	}
	if st := l.Stats(); st.Lost != 1 || balanced(t, l).Dead != 1 {
		t.Fatalf("got %+v", st)
	}
	var b delivery.Buffer
	if _, ok, err := l.Read(&b, refs[2]); ok || err != nil {
		t.Fatalf("read: %v %v", ok, err)
	}
}

// What cannot be read stays, and does not hold up what comes before it.
func TestAReadErrorReturnsWhatStandsBeforeIt(t *testing.T) {
	fl := osFiles()
	read := fl.read
	bad := int64(-1)
	fl.read = func(f *os.File, b []byte, off int64) (int, error) {
		if bad >= off && bad < off+int64(len(b)) {
			return 0, syscall.EIO
		}
		return read(f, b, off)
	}
	l := open(t, Config{Dir: t.TempDir(), files: fl})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	var refs []delivery.Ref
	for i := range 5 {
		refs = append(refs, store1(t, l, q, fmt.Sprint(i), fmt.Sprint(i)))
	}
	for at, ref := range refs {
		bad = l.offset(ref) + frameHeadBytes
		items, err := l.Next(new(delivery.Buffer), q, codec.PriorityNormal, 0, 10, 1<<20)
		if len(items) != at || (err != nil) != (at == 0) || at == 0 && !errors.Is(err, syscall.EIO) {
			t.Fatalf("with message %d unreadable: %d messages, %v", at, len(items), err)
		}
		if _, _, err := l.Read(new(delivery.Buffer), ref); !errors.Is(err, syscall.EIO) {
			t.Fatalf("reading it alone: %v", err)
		}
	}
	bad = -1
	if got := texts(t, l, q); len(got) != len(refs) || l.Stats().Lost != 0 {
		t.Fatalf("once it can be read again: %q", got)
	}
}

// Bytes that are not there any more will not come back by waiting.
func TestAFileCutShortWhileRunningCostsWhatWasInIt(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir()})
	defer shut(t, l)
	q := must(t, l, "alice", "")[0]
	store1(t, l, q, "whole", "whole")
	cut := store1(t, l, q, "cut", strings.Repeat("c", 1000))
	store1(t, l, q, "gone", "gone")
	if err := os.Truncate(lastSegment(t, l.cfg.Dir), l.offset(cut)+500); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, l, q); !slices.Equal(got, []string{"whole"}) || l.Stats().Lost != 2 {
		t.Fatalf("%q, %d lost", got, l.Stats().Lost)
	}
	balanced(t, l)
	store1(t, l, q, "new", "new")
	if got := texts(t, l, q); !slices.Equal(got, []string{"whole", "new"}) {
		t.Fatalf("got %q", got)
	}
}

func TestATruncatedSealedSegmentIsReportedAndTheRestKept(t *testing.T) {
	dir, all := prepare(t, 200, 16<<10)
	victim := all[10]
	if err := os.Truncate(filepath.Join(dir, victim.file), victim.from+5); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range all {
		if s.file != victim.file || s.to <= victim.from {
			want = append(want, s.text)
		}
	}
	got, st := reopened(t, dir)
	if !slices.Equal(got, want) || st.Damaged != 1 {
		t.Fatalf("%d messages, want %d; %d damages", len(got), len(want), st.Damaged)
	}
}

func TestAMissingSegmentIsAnErrorThatNamesIt(t *testing.T) {
	dir, all := prepare(t, 200, 16<<10)
	victim := filepath.Join(dir, all[100].file)
	if err := os.Remove(victim); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{Dir: dir, Log: quiet()})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), victim) {
		t.Fatalf("got %v", err)
	}
	// The way out that the error names.
	if err := os.WriteFile(victim, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	got, st := reopened(t, dir)
	if len(got) == 0 || len(got) == len(all) || st.Damaged != 1 {
		t.Fatalf("%d of %d messages, %d damages", len(got), len(all), st.Damaged)
	}
}

func TestARecordInsideAPayloadIsNeverTakenForOne(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	now := time.Now().UnixMilli()
	forged := appendPut(nil, &put{kind: framePut, seq: 7, acceptedMs: now, expireMs: now + dayMs, command: []byte("forged")}, "bob", "")
	newChecksums(0).seal(1, 0, forged)
	ref := store1(t, l, must(t, l, "alice", "")[0], "12345", "0123456"+strings.Repeat(string(forged), 20))
	l.mu.Lock()
	off := int64(l.slab.at(ref.Slot).off)
	l.mu.Unlock()
	path := lastSegment(t, dir)
	store1(t, l, must(t, l, "alice", "")[0], "m2", "real")
	shut(t, l)
	flip(t, path, off) // the scan looks for the next record inside the payload now
	l = open(t, Config{Dir: dir})
	defer shut(t, l)
	if got := texts(t, l, must(t, l, "alice", "")[0]); !slices.Equal(got, []string{"real"}) {
		t.Fatalf("alice: %d messages", len(got))
	}
	if in := l.UserQueues("bob"); len(in) != 0 {
		t.Fatalf("bob got a forged message: %+v", in)
	}
}

func TestDamageToTheSideFilesLosesNoMessage(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	now := time.Now().UnixMilli()
	for i := range 20 {
		user := fmt.Sprint("user", i)
		q, err := l.Claim([]byte(user), []byte("phone"), now)
		if err != nil {
			t.Fatal(err)
		}
		store1(t, l, q, "m", "text")
		l.End([]delivery.Ending{{Ref: store1(t, l, q, "e", "text"), Status: delivery.StatusAcked}}, now)
	}
	shut(t, l)
	for range 8 {
		broken := copyDir(t, dir)
		for _, name := range []string{devicesName, filepath.Base(endedPath(dir, 1))} {
			path := filepath.Join(broken, name)
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if at := rand.Int64N(st.Size()); at%2 == 0 {
				flip(t, path, at)
			} else if err := os.Truncate(path, at); err != nil {
				t.Fatal(err)
			}
		}
		l := open(t, Config{Dir: broken})
		for i := range 20 {
			qs, _, r := l.Targets(nil, fmt.Append(nil, "user", i), nil, nil, now)
			if r != codec.ResultAccepted || len(qs) != 1 || !slices.Equal(texts(t, l, qs[0]), []string{"text"}) {
				t.Fatalf("user%d: %v %d", i, qs, r)
			}
		}
		shut(t, l)
	}
}

// offset is where a stored message lies in its segment.
func (l *Local) offset(ref delivery.Ref) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.slab.at(ref.Slot).off)
}
