package delivery

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
)

// wildPeer is a connection whose client does anything: confirms, refuses, asks for time, is silent, has its outbox full, leaves.
// Its event loop is one goroutine.
type wildPeer struct {
	d      *Dispatcher
	in     chan codec.Push
	opened chan *Link
	closed chan struct{}
	once   sync.Once
	full   atomic.Bool
	foul   *atomic.Int64 // messages of another user
	user   string
}

func (p *wildPeer) Open(attachment any, _ []byte) bool {
	select {
	case <-p.closed:
		return false
	default:
	}
	p.opened <- attachment.(*Link)
	return true
}

func (p *wildPeer) Send(frame []byte) bool {
	f, _, err := codec.Parse(append([]byte(nil), frame...), codec.FrameBytesMax)
	var x codec.Push
	if err != nil || codec.DecodePush(f, &x) != nil {
		return true
	}
	if string(x.Payload) != p.user {
		p.foul.Add(1)
	}
	select {
	case <-p.closed:
		return false
	default:
	}
	select {
	case p.in <- x:
		return true
	default:
		p.full.Store(true)
		return false
	}
}

func (p *wildPeer) Unsent() int                     { return 0 }
func (p *wildPeer) Close(codec.Code, string, int64) { p.once.Do(func() { close(p.closed) }) }

// live is one connection from login to end.
func (p *wildPeer) live(r *rand.Rand, d *Dispatcher, device string) {
	d.Login(LoginRequest{Peer: p, User: []byte(p.user), Device: []byte(device)})
	var l *Link
	select {
	case l = <-p.opened:
	case <-p.closed:
		return
	}
	leave := time.NewTimer(time.Duration(r.IntN(300)) * time.Millisecond)
	defer leave.Stop()
	for {
		if p.full.Load() && len(p.in) < cap(p.in)/2 && p.full.CompareAndSwap(true, false) {
			d.Drained(l)
		}
		select {
		case x := <-p.in:
			p.answer(r, l, &x)
		case <-leave.C:
			p.Close(0, "", 0)
		case <-p.closed:
			d.Gone(l)
			return
		}
	}
}

func (p *wildPeer) answer(r *rand.Rand, l *Link, x *codec.Push) {
	switch n := r.IntN(20); {
	case x.NoAck || n < 3:
	case n < 4:
		p.d.Nack(l, &codec.Nack{Number: x.Number, DelayMs: uint64(r.IntN(400))})
	case n < 5:
		p.d.Extend(l, &codec.Extend{Number: x.Number})
	case n < 7:
		p.d.Ack(l, &codec.Ack{Kind: codec.AckMessageID, MessageID: x.MessageID})
	case n < 9:
		p.d.Ack(l, &codec.Ack{Kind: codec.AckUpTo, From: x.Number})
	default:
		p.d.Ack(l, &codec.Ack{Kind: codec.AckOne, From: x.Number, Count: 1})
	}
}

// Whatever clients do at the same time: each accepted message is ended once or still held, nobody sees another user's message, and
// nothing is left behind when all are gone. Meant for the race detector.
func TestChaosKeepsTheLedger(t *testing.T) {
	store := newFakeStore()
	c := testConfig()
	c.AckTimeout, c.WindowMsgs, c.LoginBurst = 100*time.Millisecond, 8, 1000
	d, err := NewDispatcher(c, store, metrics.NewSet(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d.Start()
	const users = 12
	var foul, accepted atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for u := range users {
		for device := range 2 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(u), uint64(device)))
				for {
					select {
					case <-stop:
						return
					default:
					}
					p := &wildPeer{
						d: d, user: fmt.Sprintf("user%d", u), in: make(chan codec.Push, 6),
						opened: make(chan *Link, 1), closed: make(chan struct{}), foul: &foul,
					}
					p.live(r, d, fmt.Sprintf("phone%d", r.IntN(2))) // takeovers happen
				}
			})
		}
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(u), 99))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				user := fmt.Sprintf("user%d", u)
				x := codec.PublishItem{User: []byte(user), MessageID: fmt.Appendf(nil, "m%d-%d", u, i), Payload: []byte(user), Priority: codec.Priority(r.IntN(3)), NoAck: r.IntN(10) == 0}
				b, done := NewBatch(), make(chan struct{})
				b.Add(&x)
				b.Done = func(b *Batch) {
					accepted.Add(int64(b.Outcome(0).Deliveries))
					b.Release()
					close(done)
				}
				d.Push(b)
				<-done
				if r.IntN(20) == 0 {
					if _, _, err := d.Cancel(t.Context(), string(x.MessageID)); err != nil {
						t.Error(err)
					}
				}
				if i%16 == 0 {
					if _, err := d.User(t.Context(), user); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	time.Sleep(1500 * time.Millisecond)
	close(stop)
	wg.Wait()
	d.Close()
	for _, l := range d.lanes {
		l.engine.Check()
	}
	d.core.table.Check()
	ended := 0
	for _, n := range store.counts {
		ended += n
	}
	if foul.Load() != 0 || int(accepted.Load()) != ended+store.live {
		t.Fatalf("%d of other users; %d accepted, %d ended, %d held", foul.Load(), accepted.Load(), ended, store.live)
	}
	s := d.Stats()
	if counted := s.Acked + s.Dead + s.Expired + s.Cancelled; s.Online != 0 || s.InFlight != 0 || s.Parked != 0 || counted != uint64(ended) {
		t.Fatalf("%d ended, stats %+v", ended, s)
	}
	if s.Acked == 0 || s.Nacks == 0 || s.Cancelled == 0 || s.Retries == 0 {
		t.Fatalf("the chaos was tame: %+v", s)
	}
}

// E4: when the system's clock is stepped by an hour, our time for expiry and dedup moves by a percent of what passes.
func TestE4SteppedClockMovesNothingAtOnce(t *testing.T) {
	d := newTestDispatcher(t, newFakeStore(), nil)
	before := d.now()
	for range 10 {
		d.followClock(before.WallMs + 3_600_000)
		d.followClock(before.WallMs + 3_600_000)
		d.followClock(before.WallMs - 3_600_000)
	}
	after := d.now()
	if moved := (after.WallMs - before.WallMs) - (after.MonoMs - before.MonoMs); moved < 5 || moved > 15 {
		t.Fatalf("moved by %d ms", moved)
	}
}
