package store

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

// The child stores messages and ends some, and says on its standard output what was answered: "put ID" and "end ID". It is killed
// in the middle of it.
func runChild(dir string) {
	l, err := Open(Config{Dir: dir, SegmentBytes: 64 << 10, StorageBytesMax: 1 << 27, QueueMessagesMax: 1 << 20, QueueBytesMax: 1 << 30,
		CommitDelay: 200 * time.Microsecond, LazyDelay: time.Millisecond, Log: quiet()})
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(out, format, args...)
		_ = out.Flush()
	}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() { childWriter(l, w, say) })
	}
	writers.Wait()
}

func childWriter(l *Local, w int, say func(string, ...any)) {
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))
	user := fmt.Sprint("user", w)
	for i := 0; ; i++ {
		now := time.Now().UnixMilli()
		qs, _, _ := l.Targets(nil, []byte(user), nil, nil, now)
		id := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
		a := newAnswers()
		text := id + strings.Repeat("x", r.IntN(900))
		ref, res := l.Append(qs[0], []byte(text), delivery.Meta{MessageID: []byte(id), AcceptedMs: now, ExpireAtMs: now + dayMs}, a, 0)
		if res != codec.ResultAccepted {
			say("failed append %d\n", res)
			return
		}
		if a.wait(0) == codec.ResultAccepted {
			say("put %s\n", id)
		}
		if r.IntN(3) > 0 {
			l.End([]delivery.Ending{{Ref: ref, Status: delivery.StatusAcked}}, now)
			say("end %s\n", id)
		}
	}
}

// R18, DESIGN section 4: after kill -9 everything answered is there; what had ended stays ended or comes again under its id.
func TestNothingAnsweredIsLostByKill9(t *testing.T) {
	dir := t.TempDir()
	put, ended := map[string]bool{}, map[string]bool{}
	for round := range 10 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childEnv+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines, stopAt := 0, 50+rand.IntN(600)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			word, id, ok := strings.Cut(sc.Text(), " ")
			switch {
			case !ok: // cut by the kill
			case word == "put":
				put[id] = true
			case word == "end":
				ended[id] = true
			default:
				t.Fatalf("round %d: the child says %q", round, sc.Text())
			}
			if lines++; lines == stopAt {
				_ = child.Process.Kill()
			}
		}
		_ = child.Wait()
		checkSurvivors(t, dir, round, put, ended)
	}
	t.Logf("%d answered, %d of them ended", len(put), len(ended))
}

func checkSurvivors(t *testing.T, dir string, round int, put, ended map[string]bool) {
	t.Helper()
	l := open(t, Config{Dir: dir, SegmentBytes: 64 << 10, StorageBytesMax: 1 << 27})
	defer shut(t, l)
	if l.Stats().Damaged != 0 {
		t.Fatalf("round %d: a kill damaged a sealed segment", round)
	}
	there := map[string]bool{}
	for w := range 4 {
		for _, q := range l.UserQueues(fmt.Sprint("user", w)) {
			for _, text := range texts(t, l, q.ID) {
				there[strings.TrimRight(text, "x")] = true
			}
		}
	}
	for id := range put {
		if !there[id] && !ended[id] {
			t.Fatalf("round %d: %s was answered and is gone", round, id)
		}
		user := "user" + strings.Split(id, "-")[1]
		if _, dup, _ := l.Targets(nil, []byte(user), nil, []byte(id), time.Now().UnixMilli()); !dup && !ended[id] {
			t.Fatalf("round %d: %s would be taken twice", round, id)
		}
	}
	balanced(t, l)
}
