package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/codec"
)

func openDedup(t *testing.T, path string, max int) *DedupFile {
	t.Helper()
	f, err := OpenDedupFile(path, max)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func dedupIDs(t *testing.T, f *DedupFile) []string {
	t.Helper()
	var ids []string
	if err := f.Load(func(id string) bool { ids = append(ids, id); return true }); err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestDedupFileRemembersOverAReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen")
	f := openDedup(t, path, 10)
	for _, ids := range [][]string{{"a", "b"}, {strings.Repeat("x", codec.MessageIDBytesMax)}, {"c"}} {
		if err := f.Append(ids); err != nil {
			t.Fatal(err)
		}
	}
	want := dedupIDs(t, f)
	if len(want) != 4 {
		t.Fatal(want)
	}
	f.Close()
	if got := dedupIDs(t, openDedup(t, path, 10)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDedupFileCutAnywhereKeepsItsWholeRecords(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	f := openDedup(t, whole, 100)
	if err := f.Append([]string{"one", "two", "three"}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(data) {
		path := filepath.Join(dir, fmt.Sprint("cut", cut))
		if err := os.WriteFile(path, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		f := openDedup(t, path, 100)
		got := dedupIDs(t, f)
		if want := []string{"one", "two", "three"}[:len(got)]; !slices.Equal(got, want) || len(got) == 3 {
			t.Fatalf("cut at %d: %q", cut, got)
		}
		if err := f.Append([]string{"next"}); err != nil { // behind what is whole
			t.Fatal(err)
		}
		f.Close()
		if got := dedupIDs(t, openDedup(t, path, 100)); got[len(got)-1] != "next" {
			t.Fatalf("cut at %d, then appended: %q", cut, got)
		}
	}
	flipped := slices.Clone(data)
	flipped[len(dedupMagic)+2] ^= 1
	path := filepath.Join(dir, "flipped")
	if err := os.WriteFile(path, flipped, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := dedupIDs(t, openDedup(t, path, 100)); len(got) != 0 {
		t.Errorf("a damaged record was believed: %q", got)
	}
}

func TestDedupFileStaysBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen")
	f := openDedup(t, path, 10)
	for i := range 1000 {
		if err := f.Append([]string{fmt.Sprintf("id-%04d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	ids := dedupIDs(t, f)
	if len(ids) < 10 || len(ids) > 20 || ids[len(ids)-1] != "id-0999" {
		t.Errorf("%d ids, last %s", len(ids), ids[len(ids)-1])
	}
	if st, err := os.Stat(path); err != nil || st.Size() > int64(len(dedupMagic)+20*12) {
		t.Errorf("%v bytes", st.Size())
	}
	f.Close()
	if got := dedupIDs(t, openDedup(t, path, 10)); !slices.Equal(got, ids) {
		t.Errorf("%q, want %q", got, ids)
	}
}

func TestDedupFileRefusesAnotherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen")
	for _, content := range []string{"#!/bin/sh\nrm -rf the wrong thing\n", "holdfast dedup 2\nxxxxx", "short"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDedupFile(path, 10); err == nil {
			t.Error("opened", content)
		}
		if left, _ := os.ReadFile(path); string(left) != content {
			t.Error("and changed it")
		}
	}
	if _, err := OpenDedupFile(path, 0); err == nil {
		t.Error("max 0")
	}
	f := openDedup(t, filepath.Join(t.TempDir(), "other"), 1)
	if f.Append([]string{""}) == nil || f.Append([]string{strings.Repeat("x", 65)}) == nil {
		t.Error("an id that is none was taken")
	}
}

// A program that restarts does not see a message again whose ACK was lost (R17 over a restart).
func TestR17DedupStoreSurvivesARestartOfTheProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen")
	r := newRecorder()
	f := openDedup(t, path, 100)
	_, p, c := pair(t, Options{Handler: r.handle, DedupStore: f})
	p.write(push(1, "a"), push(2, "b"))
	p.acks(2)
	go c.Close()
	wantNormalClose(t, p)
	receive(t, c.Done())
	f.Close()

	again := newRecorder()
	_, p, _ = pair(t, Options{Handler: again.handle, DedupStore: openDedup(t, path, 100)})
	p.write(push(1, "b"), push(2, "a"), push(3, "c"))
	p.acks(3)
	if again.count() != 1 || again.got[0].ID != "c" {
		t.Errorf("%d handed over", again.count())
	}
}

// slowStore says when it is asked and answers when it may.
type slowStore struct {
	asked chan []string
	reply chan error
}

func (s *slowStore) Load(func(string) bool) error { return nil }

func (s *slowStore) Append(ids []string) error {
	s.asked <- ids
	return <-s.reply
}

func TestAckWaitsForTheDedupStore(t *testing.T) {
	store := &slowStore{asked: make(chan []string), reply: make(chan error)}
	warned := make(chan error, 1)
	_, p, _ := pair(t, Options{Handler: newRecorder().handle, DedupStore: store, Events: Events{Warning: func(err error) { warned <- err }}})
	p.write(push(1, "a"))
	if ids := receive(t, store.asked); !slices.Equal(ids, []string{"a"}) {
		t.Error(ids)
	}
	p.silent(20 * time.Millisecond)
	store.reply <- nil
	p.acks(1)
	p.write(push(2, "b"))
	receive(t, store.asked)
	store.reply <- errors.New("disk full")
	p.acks(1) // a lost mark can only cost a second copy
	if err := receive(t, warned); !strings.Contains(err.Error(), "disk full") {
		t.Error(err)
	}
}

func TestDisconnectWhileTheDedupStoreIsAsked(t *testing.T) {
	store := &slowStore{asked: make(chan []string), reply: make(chan error)}
	s, p, _ := pair(t, Options{Handler: newRecorder().handle, DedupStore: store})
	p.write(push(1, "a"))
	receive(t, store.asked)
	p.nc.Close()
	p, _ = s.login()
	store.reply <- nil
	if got := ackWords(p.ack()); got != "processed id a" {
		t.Error(got)
	}
}

type brokenStore struct{ slowStore }

func (brokenStore) Load(func(string) bool) error { return errors.New("unreadable") }

func TestDialFailsWhenTheDedupStoreCannotBeRead(t *testing.T) {
	_, err := Dial(context.Background(), Options{Addrs: []string{"127.0.0.1:1"}, User: "a", Handler: newRecorder().handle, DedupStore: &brokenStore{}})
	if err == nil || !strings.Contains(err.Error(), "unreadable") {
		t.Error(err)
	}
}

// The mark belongs to the handler's effect, which a lost connection does not undo: it must not wait for the next login.
func TestR17MarkIsWrittenWhileThereIsNoConnection(t *testing.T) {
	store := &slowStore{asked: make(chan []string), reply: make(chan error)}
	hold, running := make(chan struct{}), make(chan struct{})
	s, p, c := pair(t, Options{DedupStore: store, BackoffBase: time.Hour, BackoffMax: time.Hour,
		Handler: func(context.Context, *Message) error { close(running); <-hold; return nil }})
	p.write(push(1, "a"))
	receive(t, running)
	p.nc.Close()
	eventually(t, "the connection is gone", func() bool { return c.Stats().Disconnects == 1 })
	close(hold)
	if ids := receive(t, store.asked); !slices.Equal(ids, []string{"a"}) {
		t.Error(ids)
	}
	store.reply <- nil
	s.quiet(10 * time.Millisecond)
}

func TestR17MarkOfAnAckThatWaitedForCompanyIsWrittenWhenTheConnectionEnds(t *testing.T) {
	store := &slowStore{asked: make(chan []string, 2), reply: make(chan error, 2)}
	store.reply <- nil // for a
	store.reply <- nil // for b, at the end
	hold := make(chan struct{})
	defer close(hold)
	_, p, c := pair(t, Options{DedupStore: store, AckDelay: patience, BackoffBase: time.Hour, BackoffMax: time.Hour,
		Handler: func(_ context.Context, m *Message) error {
			if m.ID == "b" {
				<-hold
			}
			return nil
		}})
	p.write(push(1, "a"), push(2, "b"))
	eventually(t, "one is confirmed", func() bool { return c.Stats().Acked == 1 })
	p.nc.Close()
	if ids := receive(t, store.asked); !slices.Equal(ids, []string{"a"}) {
		t.Error(ids)
	}
}
