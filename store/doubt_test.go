package store

import (
	"slices"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// torn makes the directory that a kill -9 leaves between the records of one push for three devices: only the first of them is on
// the disk. end says how its delivery ended before the kill, if it did.
func torn(t *testing.T, end delivery.Status) (dir string, queues []delivery.QueueID) {
	t.Helper()
	live := t.TempDir()
	l := open(t, Config{Dir: live, LazyDelay: time.Millisecond})
	defer shut(t, l)
	now := time.Now().UnixMilli()
	for _, device := range []string{"phone", "tablet", "watch"} {
		q, err := l.Claim([]byte("alice"), []byte(device), now)
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, q)
	}
	store1(t, l, queues[0], "before", "x")
	ref := store1(t, l, queues[0], "m1", "x")
	if end != delivery.StatusOffline {
		written := l.Stats().BytesWritten
		l.End([]delivery.Ending{{Ref: ref, Status: end}}, now)
		eventually(t, "the end is written", func() bool { return l.Stats().BytesWritten > written })
	}
	return copyDir(t, live), queues
}

func repeat(t *testing.T, l *Local, device, id string) (devices []string) {
	t.Helper()
	queues, duplicate, r := l.Targets(nil, []byte("alice"), []byte(device), []byte(id), time.Now().UnixMilli())
	switch {
	case duplicate && r == codec.ResultDuplicate && len(queues) == 0:
		return nil
	case duplicate || r != codec.ResultAccepted || len(queues) == 0:
		t.Fatalf("targets of the repeat: %v, duplicate %v, %s", queues, duplicate, r)
	}
	for _, q := range queues {
		devices = append(devices, l.Queue(q).Device)
	}
	slices.Sort(devices)
	return devices
}

// R18: a push of which a crash left some devices' records and not the others was never answered. Its repeat reaches the devices that
// have none, once.
func TestARepeatCompletesWhatACrashCutBetweenTwoDevices(t *testing.T) {
	for _, end := range []delivery.Status{delivery.StatusOffline, delivery.StatusAcked} {
		dir, queues := torn(t, end)
		l := open(t, Config{Dir: dir})
		if got := repeat(t, l, "", "m1"); !slices.Equal(got, []string{"tablet", "watch"}) {
			t.Fatalf("first copy %s: the repeat goes to %v", end, got)
		}
		if got := repeat(t, l, "phone", "m1"); got != nil {
			t.Errorf("first copy %s: a repeat for its device goes to %v", end, got)
		}
		if got := repeat(t, l, "tablet", "m1"); !slices.Equal(got, []string{"tablet"}) {
			t.Errorf("first copy %s: a repeat for another device goes to %v", end, got)
		}
		for _, q := range queues[1:] {
			store1(t, l, q, "m1", "x")
		}
		if got := repeat(t, l, "", "m1"); got != nil {
			t.Errorf("first copy %s: the second repeat goes to %v", end, got)
		}
		shut(t, l)
		l = open(t, Config{Dir: dir})
		if got := repeat(t, l, "", "m1"); got != nil {
			t.Errorf("first copy %s: a repeat after the next start goes to %v", end, got)
		}
		balanced(t, l)
		shut(t, l)
	}
}

// What is over for all devices, or was complete long before the crash, stays a duplicate.
func TestARepeatThatIsNotInDoubtIsADuplicate(t *testing.T) {
	dir, _ := torn(t, delivery.StatusCancelled)
	l := open(t, Config{Dir: dir})
	if got := repeat(t, l, "", "m1"); got != nil {
		t.Errorf("a cancelled message goes to %v", got)
	}
	shut(t, l)

	dir, _ = torn(t, delivery.StatusOffline)
	l = open(t, Config{Dir: dir})
	l.doubt.from = l.doubt.start // as if more than doubtSpan messages had followed
	if got := repeat(t, l, "", "m1"); got != nil {
		t.Errorf("an old message goes to %v", got)
	}
	shut(t, l)

	dir = t.TempDir()
	l = open(t, Config{Dir: dir})
	store1(t, l, must(t, l, "alice", "")[0], "m1", "for the first device")
	before := copyDir(t, dir)
	shut(t, l)
	l = open(t, Config{Dir: before})
	defer shut(t, l)
	if got := repeat(t, l, "", "m1"); got != nil {
		t.Errorf("what waits for a first device goes to %v", got)
	}
}
