package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

func TestASecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	_, err := Open(Config{Dir: dir, Log: quiet()})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Fatalf("got %v", err)
	}
	shut(t, l)
	shut(t, open(t, Config{Dir: dir}))
}

func TestAnotherFormatIsRefusedNamingBothVersions(t *testing.T) {
	dir := t.TempDir()
	shut(t, open(t, Config{Dir: dir}))
	path := filepath.Join(dir, formatFile)
	for text, want := range map[string]string{
		"holdfast-store 9\nseed 1\nepoch 1\n": "version 9, this program reads version 1",
		"something else\n":                    "not a format file",
		"holdfast-store 1\n":                  "damaged",
		"":                                    "not a format file",
	} {
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Config{Dir: dir, Log: quiet()})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Fatalf("%q: got %v", text, err)
		}
	}
	l, err := Open(Config{Dir: dir, Log: quiet()})
	if err == nil {
		shut(t, l)
		t.Fatal("a damaged format file was taken")
	}
}

func TestSegmentsWithoutAFormatAreRefused(t *testing.T) {
	dir := t.TempDir()
	shut(t, open(t, Config{Dir: dir}))
	if err := os.Remove(filepath.Join(dir, formatFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, Log: quiet()}); err == nil || !strings.Contains(err.Error(), formatFile) {
		t.Fatalf("got %v", err)
	}
}

func TestImpossibleSettingsAreRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"no directory":   {},
		"sync":           {Dir: "x", Sync: 7},
		"tiny segments":  {Dir: "x", SegmentBytes: 1},
		"many segments":  {Dir: "x", SegmentBytes: 4 << 10, StorageBytesMax: 1 << 30},
		"small storage":  {Dir: "x", StorageBytesMax: 1 << 20},
		"negative delay": {Dir: "x", CommitDelay: -time.Second},
		"negative limit": {Dir: "x", QueueMessagesMax: -1},
		"pending":        {Dir: "x", PendingBytesMax: -1},
		"dedup":          {Dir: "x", DedupMax: -1},
		"read cache":     {Dir: "x", ReadCacheBytes: -1},
	} {
		if l, err := Open(c); err == nil {
			shut(t, l)
			t.Errorf("%s: taken", name)
		}
	}
}

func TestRestartsAloneDoNotFillTheDirectory(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		shut(t, open(t, Config{Dir: dir}))
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 4 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
}

// A crash loop with a message that waits for long must not pile up files.
func TestStartsGoOnInTheLastSegment(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for i := range 20 {
		l := open(t, Config{Dir: dir})
		q := must(t, l, "alice", "")[0]
		want = append(want, fmt.Sprint(i))
		store1(t, l, q, want[i], want[i])
		if got := texts(t, l, q); !slices.Equal(got, want) {
			t.Fatalf("start %d: %q", i, got)
		}
		if n := l.Stats().Segments; n != 1 {
			t.Fatalf("%d segments after %d starts", n, i+1)
		}
		shut(t, l)
	}
}

func TestCallsAfterCloseAreRefused(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir()})
	q := must(t, l, "alice", "")[0]
	ref := store1(t, l, q, "m", "x")
	shut(t, l)
	if err := l.Close(); !errors.Is(err, ErrClosed) {
		t.Fatalf("second close: %v", err)
	}
	if _, _, err := l.Read(new(delivery.Buffer), ref); !errors.Is(err, ErrClosed) {
		t.Fatalf("read: %v", err)
	}
	if _, err := l.Next(new(delivery.Buffer), q, 0, 0, 1, 1); !errors.Is(err, ErrClosed) {
		t.Fatalf("next: %v", err)
	}
	if _, err := l.DeadLetters(0, 1); !errors.Is(err, ErrClosed) {
		t.Fatalf("dead letters: %v", err)
	}
	if found := l.Find("m"); len(found) != 0 {
		t.Fatalf("find: %v", found)
	}
}

// D2: after kill -9 what may have been sent says so, for nobody knows; after Close, and for what waits for a first device, it is known.
func TestD2MayHaveBeenSentAfterACrash(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	if _, err := l.Claim([]byte("alice"), []byte("phone"), time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	store1(t, l, must(t, l, "alice", "")[0], "m1", "for a known device")
	store1(t, l, must(t, l, "bob", "")[0], "m2", "for whoever comes first")
	crashed := copyDir(t, dir) // what a kill would leave
	shut(t, l)
	for name, c := range map[string]struct {
		dir  string
		want bool
	}{"closed": {dir, false}, "killed": {crashed, true}} {
		l := open(t, Config{Dir: c.dir})
		for user, want := range map[string]bool{"alice": c.want, "bob": false} {
			items, err := l.Next(new(delivery.Buffer), must(t, l, user, "")[0], codec.PriorityNormal, 0, 10, 1<<20)
			if err != nil || len(items) != 1 || items[0].Sent != want {
				t.Errorf("%s: %s has %+v (%v), sent should be %v", name, user, items, err, want)
			}
		}
		shut(t, l)
	}
}
