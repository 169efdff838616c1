package client

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/codec"
)

// held starts a client whose messages are confirmed by the test.
func held(t *testing.T, o Options, change ...func(*codec.Welcome)) (*fakeServer, *peer, *Client, *recorder) {
	t.Helper()
	r := newRecorder()
	o.AckMode, o.Handler = AckManual, r.handle
	s, p, c := pair(t, o, change...)
	return s, p, c, r
}

// take pushes the numbers and returns their messages by number.
func take(t *testing.T, p *peer, r *recorder, numbers ...uint64) map[uint64]*Message {
	t.Helper()
	var frames [][]byte
	for _, n := range numbers {
		frames = append(frames, push(n, fmt.Sprint("m", n)))
	}
	p.write(frames...)
	got := make(map[uint64]*Message)
	for range numbers {
		m := r.next(t)
		got[m.RequestID-fakeBase] = m
	}
	return got
}

func TestAcksAreMergedIntoTheShortestTrueFrame(t *testing.T) {
	tests := []struct {
		name   string
		pushed []uint64
		ack    []uint64 // the last ones are the last open: they flush
		want   string
	}{
		{"one", []uint64{1}, []uint64{1}, "processed 1"},
		{"all from the first: up to", []uint64{1, 2, 3}, []uint64{1, 2, 3}, "processed <=3"},
		{"in any order", []uint64{1, 2, 3, 4}, []uint64{3, 1, 4, 2}, "processed <=4"},
		{"a run that does not begin at the first", []uint64{5, 6, 7}, []uint64{7, 6, 5}, "processed 5-7"},
		{"with a hole", []uint64{1, 2, 4, 5, 9}, []uint64{1, 2, 4, 5, 9}, "processed 1-2,4-5,9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, p, _, r := held(t, Options{AckDelay: patience})
			m := take(t, p, r, tt.pushed...)
			for _, n := range tt.ack {
				m[n].Ack()
			}
			if got := ackWords(p.ack()); got != tt.want {
				t.Errorf("acks %q, want %q", got, tt.want)
			}
		})
	}
}

func TestUpToIsNotSaidOverAMessageThatWasNotConfirmed(t *testing.T) {
	_, p, _, r := held(t, Options{AckDelay: patience})
	m := take(t, p, r, 1, 2, 3, 4)
	m[2].Nack(time.Hour, "")
	p.nack()
	m[1].Ack()
	m[3].Ack()
	m[4].Ack()
	if got := ackWords(p.ack()); got != "processed 1,3-4" {
		t.Error(got)
	}
	m = take(t, p, r, 5, 6)
	m[5].Ack()
	m[6].Ack()
	if got := ackWords(p.ack()); got != "processed 5-6" {
		t.Error("number 2 is still open at the server, and the client said", got)
	}
	m = take(t, p, r, 2) // again
	m[2].Ack()
	p.ack()
	m = take(t, p, r, 7, 8)
	m[7].Ack()
	m[8].Ack()
	if got := ackWords(p.ack()); got != "processed <=8" {
		t.Error(got)
	}
}

func TestAckLevelsTravelInFramesOfTheirOwn(t *testing.T) {
	_, p, _, r := held(t, Options{AckDelay: patience})
	m := take(t, p, r, 1, 2, 3)
	m[1].AckLevel(codec.LevelReceived)
	m[2].AckLevel(codec.LevelRead)
	m[3].AckLevel(codec.LevelReceived)
	got := []string{ackWords(p.ack()), ackWords(p.ack())}
	if want := []string{"received 1,3", "read 2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAckWaitsForCompanyNoLongerThanTheDelay(t *testing.T) {
	_, p, _, r := held(t, Options{AckDelay: 60 * time.Millisecond})
	m := take(t, p, r, 1, 2)
	began := time.Now()
	m[1].Ack() // 2 stays open, so something may still come
	p.ack()
	if d := time.Since(began); d < 50*time.Millisecond || d > time.Second {
		t.Errorf("flushed after %v", d)
	}
}

func TestAFullBatchOfAcksDoesNotWait(t *testing.T) {
	_, p, _, r := held(t, Options{AckDelay: patience, AckBatch: 4})
	m := take(t, p, r, 1, 2, 3, 4, 5)
	for n := range uint64(4) {
		m[n+1].Ack()
	}
	if got := ackWords(p.ack()); got != "processed <=4" {
		t.Error(got)
	}
}

func TestWithoutDelayEachAckLeavesAtOnce(t *testing.T) {
	_, p, _, r := held(t, Options{AckDelay: -1})
	m := take(t, p, r, 1, 2)
	m[2].Ack()
	if got := ackWords(p.ack()); got != "processed 2" {
		t.Error(got)
	}
}

// R17: a copy is answered and not handed over; nats-streaming further 3: also when each id is ACKed only once by the program.
func TestR17CopyOfASettledMessageIsAnsweredAtOnce(t *testing.T) {
	_, p, c, r := held(t, Options{AckDelay: patience})
	m := take(t, p, r, 1, 2)
	m[1].AckLevel(codec.LevelRead)
	m[2].Ack()
	p.acks(2)
	open := take(t, p, r, 3) // keeps the client busy: the answer must not wait for it
	p.write(push(1, "m1"), push(7, "m2"))
	if got := []string{ackWords(p.ack()), ackWords(p.ack())}; !slices.Equal(got, []string{"processed 7", "read 1"}) {
		t.Error(got)
	}
	if r.count() != 3 || c.Stats().Duplicates != 2 {
		t.Errorf("%d handed over, stats %+v", r.count(), c.Stats())
	}
	open[3].Ack()
	p.ack()
}

func TestCopyOfAMessageStillInWorkIsNotedAndNotHandedOver(t *testing.T) {
	_, p, c, r := held(t, Options{})
	m := take(t, p, r, 1)
	p.write(push(1, "m1")) // the ACK timeout passed
	eventually(t, "the copy", func() bool { return c.Stats().Duplicates == 1 })
	p.silent(20 * time.Millisecond)
	m[1].Ack()
	if got := ackWords(p.ack()); got != "processed 1" {
		t.Error(got)
	}
	if r.count() != 1 {
		t.Error("handed over twice")
	}
}

func TestDedupMemoryIsBoundedAndCanBeOff(t *testing.T) {
	r := newRecorder()
	_, p, _ := pair(t, Options{Handler: r.handle, DedupSize: 2})
	for i, id := range []string{"a", "b", "c", "a", "c"} {
		p.write(push(uint64(i+1), id))
		p.ack()
	}
	if r.count() != 4 { // a was forgotten, c was not
		t.Errorf("%d handed over", r.count())
	}
	off := newRecorder()
	_, p, _ = pair(t, Options{Handler: off.handle, DedupSize: -1})
	for i := range 3 {
		p.write(push(uint64(i+1), "a"))
		p.ack()
	}
	if off.count() != 3 {
		t.Errorf("%d handed over without dedup", off.count())
	}
}

// CASES C1: what was read and not confirmed comes again, what was confirmed does not, whatever way the connection ended.
func TestC1ConfirmationsThatCouldNotLeaveAreToldByMessageIDAtTheNextLogin(t *testing.T) {
	s, p, c, r := held(t, Options{AckDelay: patience})
	m := take(t, p, r, 1, 2, 3, 4)
	m[1].Ack() // waits for company
	p.nc.Close()
	p = s.accept()
	m[2].AckLevel(codec.LevelRead) // while there is no session
	x := p.connect()
	if !x.HasResume || x.ResumeSession != 7 || x.ResumeNumberSeen != 4 {
		t.Errorf("resume %+v", x)
	}
	p.welcome(func(w *codec.Welcome) { w.SessionID = 8 })
	got := p.acks(2)
	slices.Sort(got)
	if want := []string{"processed id m1", "read id m2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	m[3].Ack() // its connection is gone and it was not sent again yet
	if got := ackWords(p.ack()); got != "processed id m3" {
		t.Error(got)
	}
	p.write(push(1, "m4"))
	eventually(t, "the copy of m4", func() bool { return c.Stats().Duplicates == 1 })
	m[4].Ack() // by the number of its copy
	if got := ackWords(p.ack()); got != "processed 1" {
		t.Error(got)
	}
	if r.count() != 4 {
		t.Errorf("%d handed over", r.count())
	}
}

func TestConfirmationsForTheNextLoginAreBounded(t *testing.T) {
	c := &Client{}
	for i := range carryMax + 10 {
		c.carryLocked(ackRef{fmt.Sprint(i), codec.LevelProcessed})
	}
	if n := len(c.carry); n > carryMax {
		t.Errorf("%d kept", n)
	}
	if last := c.carry[len(c.carry)-1].id; last != fmt.Sprint(carryMax+9) {
		t.Errorf("the newest is %s", last)
	}
}

// CASES further 4: ids ahead of, behind or foreign to the session do no harm.
func TestNumbersMayComeInAnyOrderAndWithHoles(t *testing.T) {
	r := newRecorder()
	_, p, c := pair(t, Options{Handler: r.handle})
	numbers := []uint64{9, 3, 1 << 40, 4, 2, 1 << 39}
	for _, n := range numbers {
		p.write(push(n, fmt.Sprint("m", n)))
		if got := ackWords(p.ack()); got != fmt.Sprintf("processed %d", n) {
			t.Error(got)
		}
	}
	if st := c.Stats(); st.Acked != uint64(len(numbers)) {
		t.Errorf("stats %+v", st)
	}
}

// R20: a busy client sends far fewer ACK frames than messages.
func TestR20BurstsAreConfirmedWithFewFrames(t *testing.T) {
	_, p, c := pair(t, Options{Handler: func(context.Context, *Message) error { return nil }},
		func(w *codec.Welcome) { w.WindowMsgs = 2000 })
	const n = 2000
	var all []byte
	for i := range n {
		all = append(all, push(uint64(i+1), fmt.Sprint("m", i))...)
	}
	p.write(all)
	p.acks(n)
	if f := c.Stats().AckFrames; f > n/8 {
		t.Errorf("%d frames for %d messages", f, n)
	}
}
