package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/codec"
)

// Further 1: two clients that fight for one id are slowed down; the one that is connected stays, and others feel nothing.
func TestFurther1TakeoverStormIsCapped(t *testing.T) {
	h := newHarness(t, nil)
	good, refused := 0, 0
	var last *fakePeer
	for range 300 { // 10 a second
		_, p := h.login("alice/phone")
		if p.closed == codec.CodeOverloaded {
			refused++
			if p.retryAfter < 1 || p.retryAfter > 60_000 {
				t.Fatalf("retry after %d ms", p.retryAfter)
			}
		} else {
			good++
			last = p
		}
		h.advance(100 * time.Millisecond)
	}
	if good < 15 || good > 32 || refused != 300-good {
		t.Fatalf("%d logins, %d refused", good, refused)
	}
	h.push("alice", "m1", nil)
	h.wantPushes(last, "m1")
	if _, p := h.login("bob/phone"); p.closed != 0 {
		t.Fatal("another user was refused")
	}
}

func TestLoginWithoutAStoreIsRefusedForNow(t *testing.T) {
	h := newHarness(t, nil)
	h.store.failClaims = true
	_, p := h.login("alice/phone")
	if p.closed != codec.CodeUnavailable || p.retryAfter == 0 || len(h.e.users) != 0 {
		t.Fatalf("code %d, retry after %d", p.closed, p.retryAfter)
	}
	h.store.failClaims = false
	if _, p := h.login("alice/phone"); p.closed != 0 {
		t.Fatalf("code %d", p.closed)
	}
}

func TestConnectionThatEndsDuringItsLoginLeavesNothing(t *testing.T) {
	h := newHarness(t, nil)
	_, old := h.login("alice/phone")
	gone := &fakePeer{gone: true}
	h.e.Login(newLink(LoginRequest{Peer: gone, User: []byte("alice"), Device: []byte("phone")}), h.now)
	h.settle()
	if s := h.core.table.Stats(); s.Sessions != 0 || old.closed != codec.CodeReplaced || len(h.e.users) != 0 {
		t.Fatalf("%d sessions, closed %d", s.Sessions, old.closed)
	}
	h.push("alice", "m1", nil)
	_, p := h.login("alice/phone")
	h.wantPushes(p, "m1")
}

// C1: an ACK that was sent on the old connection before the takeover, but is read after it, counts: the message does not come again.
func TestC1AckOnTheOldConnectionCountsDuringATakeover(t *testing.T) {
	h := newHarness(t, nil)
	_, p1 := h.login("alice/phone")
	h.pushMany("alice", 1, 2)
	h.wantPushes(p1, ids(1, 2)...)
	var peers [3]*fakePeer
	for i := range peers { // of several heirs the last one enters
		peers[i] = &fakePeer{}
		h.e.Login(newLink(LoginRequest{Peer: peers[i], User: []byte("alice"), Device: []byte("phone")}), h.now)
	}
	h.push("alice", "m3", nil) // while nobody is really there; settles the takeover as well
	for i, p := range peers[:2] {
		if p.closed != codec.CodeReplaced || p.welcome != nil {
			t.Fatalf("heir %d: closed %d", i, p.closed)
		}
	}
	h.wantPushes(peers[2], ids(1, 3)...)
	l := peers[2].attachment.(*Link)
	heir := &fakePeer{}
	h.e.Login(newLink(LoginRequest{Peer: heir, User: []byte("alice"), Device: []byte("phone")}), h.now)
	h.core.ack(l, &codec.Ack{Kind: codec.AckUpTo, From: 2}, h.now)
	h.settle()
	h.wantPushes(heir, "m3")
}

func TestFirstDeviceTakesTheDefaultQueueOver(t *testing.T) {
	h := newHarness(t, nil)
	h.pushMany("alice", 1, 2)
	_, p := h.login("alice/phone")
	h.wantPushes(p, ids(1, 2)...)
	_, p = h.login("alice/tablet")
	h.wantPushes(p)
	if o := h.push("alice", "m3", nil); o.Deliveries != 2 {
		t.Fatalf("outcome %+v", o)
	}
}

// Further 12: a message that crashes its client is found alone and ends in the dead letters; its neighbours are delivered.
func TestFurther12CrashingMessageIsFoundAloneAndNeighboursSurvive(t *testing.T) {
	h := newHarness(t, nil)
	for _, id := range []string{"bad", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8", "g9"} {
		h.push("alice", id, nil)
	}
	logins, copies := 0, 0
	for h.store.live > 0 && logins < 60 {
		l, p := h.login("alice/phone")
		logins++
		crashed := false
		for p.count() > 0 && !crashed {
			for _, x := range p.pushes() {
				if string(x.MessageID) == "bad" {
					copies++
					crashed = true
					break
				}
				h.ackOne(l, x.Number)
			}
		}
		h.advance(3 * time.Second)
		h.gone(l)
	}
	h.wantStatus("bad", "DEAD_LETTER attempts")
	for i := 1; i <= 9; i++ {
		h.wantStatus(fmt.Sprintf("g%d", i), "ACKED")
	}
	if copies != 22 || logins > 24 { // two before the logins become careful, then the life limit
		t.Fatalf("%d logins, %d copies", logins, copies)
	}
}

// A phone that changes its network leaves the old connection half-open and takes it over: what was sent into it is no attempt.
func TestTakeoversAndDrainsAreNoAttempts(t *testing.T) {
	h := newHarness(t, nil)
	l, _ := h.login("alice/phone")
	h.push("alice", "m1", nil)
	for range 5 {
		h.advance(3 * time.Second)
		l, _ = h.login("alice/phone")
	}
	h.e.GoAway(1000, 2000, "", h.now)
	h.gone(l)
	if r := h.store.Find("m1")[0]; r.Attempts != 0 || !r.Sent {
		t.Fatalf("record %+v", r)
	}
	h.boot(testConfig())
	l, _ = h.login("alice/phone")
	h.gone(l)
	if r := h.store.Find("m1")[0]; r.Attempts != 1 { // this time the client left, with nothing else in flight
		t.Fatalf("record %+v", r)
	}
}

func TestCarefulLoginSendsOneMessageUntilTheFirstAck(t *testing.T) {
	h := newHarness(t, nil)
	h.pushMany("alice", 1, 5)
	for range streakCareful {
		l, p := h.login("alice/phone")
		h.wantPushes(p, ids(1, 5)...)
		h.gone(l)
	}
	l, p := h.login("alice/phone")
	h.wantPushes(p, "m1")
	h.pushMany("alice", 6, 6)
	h.advance(time.Second)
	h.wantPushes(p)
	h.ackOne(l, 1)
	h.wantPushes(p, ids(2, 6)...)
	h.gone(l)
	_, p = h.login("alice/phone") // it had acknowledged: not careful any more
	h.wantPushes(p, ids(2, 6)...)
}

func TestCarefulLoginGoesOnWhenItsOneMessageExpires(t *testing.T) {
	h := newHarness(t, nil)
	h.push("alice", "short", func(x *codec.PublishItem) { x.TTLMs = 5000 })
	h.pushMany("alice", 1, 2)
	for range streakCareful {
		l, _ := h.login("alice/phone")
		h.gone(l)
	}
	_, p := h.login("alice/phone")
	h.wantPushes(p, "short")
	h.advance(7 * time.Second)
	h.wantStatus("short", "EXPIRED ttl")
	h.wantPushes(p, "m1")
}

func TestDrainSendsClientsAwaySpreadAndWaitsForTheirAcks(t *testing.T) {
	h := newHarness(t, nil)
	var links []*Link
	var peers []*fakePeer
	for i := range 100 {
		l, p := h.login(fmt.Sprintf("user%d/phone", i))
		links, peers = append(links, l), append(peers, p)
	}
	h.push("user7", "m7", nil)
	h.e.GoAway(10_000, 30_000, "b:7700", h.now)
	h.settle()
	low, high := uint64(1<<63), uint64(0)
	for i, p := range peers {
		last := p.frames[len(p.frames)-1]
		f, _, err := codec.Parse(last, 1<<16)
		if err != nil || f.Type != codec.TypeGoAway {
			t.Fatalf("client %d: %v, type %s", i, err, f.Type)
		}
		var g codec.GoAway
		if err := codec.DecodeGoAway(f, &g); err != nil || string(g.Servers) != "b:7700" || g.DeadlineMs != 30_000 {
			t.Fatalf("client %d: %+v %v", i, g, err)
		}
		low, high = min(low, g.ReconnectAfterMs), max(high, g.ReconnectAfterMs)
	}
	if low > 5000 || high < 5000 || high >= 10_000 {
		t.Fatalf("asked to come back spread from %d to %d ms", low, high)
	}
	closedBy := func() (n int) {
		for _, p := range peers {
			if p.closed == codec.CodeGoingAway {
				n++
			}
		}
		return n
	}
	counts := []int{closedBy()}
	for range 10 {
		h.advance(time.Second)
		counts = append(counts, closedBy())
	}
	if counts[0] != 0 || counts[5] < 30 || counts[5] > 70 || counts[10] < 97 {
		t.Fatalf("closed after each second: %v", counts)
	}
	if peers[7].closed != 0 {
		t.Fatal("closed with a message in flight")
	}
	if _, p := h.login("late/phone"); p.closed != codec.CodeGoingAway || p.welcome != nil {
		t.Fatalf("a login while draining: closed %d", p.closed)
	}
	h.push("user7", "m8", nil) // nothing new goes out
	h.ackOne(links[7], 1)
	h.advance(time.Second)
	if peers[7].closed != codec.CodeGoingAway || slices.ContainsFunc(peers[7].pushes(), func(x codec.Push) bool { return string(x.MessageID) == "m8" }) {
		t.Fatal("the last client was not closed, or got something new")
	}
}

// A device that stays connected for longer than the retention of devices is still a target.
func TestConnectedDeviceIsNotForgotten(t *testing.T) {
	h := newHarness(t, nil)
	h.store.knownForMs = 30 * 24 * time.Hour.Milliseconds()
	_, p := h.login("alice/phone")
	for range 40 {
		h.advance(time.Minute)
		h.now.WallMs += 24 * time.Hour.Milliseconds()
		h.e.Refresh(h.now)
	}
	h.push("alice", "m1", nil)
	h.wantPushes(p, "m1")
}

// A login whose client has closed its side already, but is read after the device's next one, does not throw that out.
func TestLoginOfAClientThatLeftReplacesNobody(t *testing.T) {
	h := newHarness(t, nil)
	request := func(p *fakePeer) LoginRequest {
		return LoginRequest{Peer: p, User: []byte("alice"), Device: []byte("phone"), Left: true}
	}
	_, p := h.login("alice/phone")
	late := &fakePeer{}
	h.e.Login(newLink(request(late)), h.now)
	h.settle()
	h.push("alice", "m1", nil)
	h.wantPushes(p, "m1")
	if late.closed != codec.CodeReplaced || p.closed != 0 {
		t.Fatalf("closed: late %d, live %d", late.closed, p.closed)
	}
	first := &fakePeer{} // without another one it logs in: what it sent before it left may still take effect
	h.e.Login(newLink(LoginRequest{Peer: first, User: []byte("bob"), Device: []byte("phone"), Left: true}), h.now)
	if first.welcome == nil {
		t.Fatal("refused though it replaces nobody")
	}
}
