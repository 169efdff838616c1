package delivery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/ack"
	"holdfast/codec"
)

// The simulation runs the engines, the table and the wheel against a store, a network, clients and publishers that misbehave, in
// manual time, without a goroutine, from one seed. The driver is the product's: what event loops do is done at any moment, even in
// the middle of a lane's work; what lanes do goes through their inboxes.

// sim is one simulated world.
type sim struct {
	seed      uint64
	rand      *rand.Rand
	now       Now
	queue     simQueue
	steps     int
	plan      simPlan
	node      *simNode // nil while the process is down
	store     *simStore
	ledger    *simLedger
	users     []*simUser
	conns     []*simConn // every connection the node knows, oldest first
	opened    int        // connections so far
	ids       int
	published []codec.PublishItem // everything that is to be confirmed
	boots     int
	followed  []simFollowed
	calm      bool   // no more faults
	doing     string // what the engine was told last

	trail  []string // the readable log; kept only when keep is set
	keep   bool
	digest uint64
}

// simFailure is what a broken rule panics with.
type simFailure struct{ text string }

func (w *sim) fail(format string, args ...any) {
	panic(simFailure{fmt.Sprintf(format, args...)})
}

// logf notes what happens. The digest makes two runs of a seed comparable without keeping the text.
func (w *sim) logf(format string, args ...any) {
	if !w.keep {
		return
	}
	line := fmt.Sprintf("%9.3f ", float64(w.now.MonoMs)/1000) + fmt.Sprintf(format, args...)
	w.trail = append(w.trail, line)
	for i := range len(line) {
		w.digest = w.digest*1099511628211 + uint64(line[i])
	}
}

// chance, between and pick are the world's luck.
func (w *sim) chance(p float64) bool { return p > 0 && w.rand.Float64() < p }

func (w *sim) between(from, to int64) int64 {
	if to <= from {
		return from
	}
	return from + w.rand.Int64N(to-from+1)
}

func pick[T any](w *sim, list ...T) T { return list[w.rand.IntN(len(list))] }

// sometimes is a rate that is zero in about half the runs: runs differ, and every fault is also seen without the others.
func (w *sim) sometimes(most float64) float64 {
	if w.chance(0.5) {
		return 0
	}
	return w.rand.Float64() * most
}

// simQueue is the heap of what will happen, by time and then by the order it was planned in.
type simQueue struct {
	list  []simEvent
	order uint64
}

type simEvent struct {
	atMs  int64
	order uint64
	do    func()
}

func (a simEvent) before(b simEvent) bool {
	return a.atMs < b.atMs || a.atMs == b.atMs && a.order < b.order
}

func (q *simQueue) push(atMs int64, do func()) {
	q.order++
	q.list = append(q.list, simEvent{atMs, q.order, do})
	for i := len(q.list) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.list[i].before(q.list[up]) {
			break
		}
		q.list[i], q.list[up] = q.list[up], q.list[i]
		i = up
	}
}

func (q *simQueue) pop() simEvent {
	top, last := q.list[0], len(q.list)-1
	q.list[0] = q.list[last]
	q.list[last] = simEvent{}
	q.list = q.list[:last]
	for i := 0; ; {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < last; k++ {
			if q.list[k].before(q.list[least]) {
				least = k
			}
		}
		if least == i {
			return top
		}
		q.list[i], q.list[least] = q.list[least], q.list[i]
		i = least
	}
}

// after plans something.
func (w *sim) after(ms int64, do func()) { w.queue.push(w.now.MonoMs+max(0, ms), do) }

// step lets the next thing happen.
func (w *sim) step() {
	x := w.queue.pop()
	w.advance(x.atMs)
	w.steps++
	x.do()
}

func (w *sim) advance(monoMs int64) {
	if d := monoMs - w.now.MonoMs; d > 0 {
		w.now.MonoMs += d
		w.now.WallMs += d
	}
}

// until runs the world up to a moment.
func (w *sim) until(monoMs int64) {
	for len(w.queue.list) > 0 && w.queue.list[0].atMs <= monoMs {
		w.step()
	}
	w.advance(monoMs)
}

// simNode is one life of the process.
type simNode struct {
	w        *sim
	core     *core
	lanes    []*simLane
	config   Config
	draining bool
	sweeping sweepScratch
	fired    []ack.Expired
	budget   simBudget
	ticks    int
}

// boot starts the process on what the store has.
func (w *sim) boot() {
	w.boots++
	n := &simNode{w: w, config: w.plan.config}
	n.core = newCore(n.config, w.store, metrics.NewSet(), w.now.MonoMs)
	for i := range n.config.Lanes {
		e := newEngine(n.core, rand.New(rand.NewPCG(w.seed, uint64(w.boots*100+i))))
		n.lanes = append(n.lanes, &simLane{node: n, engine: e})
	}
	w.node = n
	w.logf("the process starts, life %d, %d messages stored", w.boots, w.store.live)
	n.tick()
}

// tick finds timeouts and looks after lanes and sweeps, like the dispatcher's two clocks.
func (n *simNode) tick() {
	w := n.w
	if w.node != n {
		return
	}
	n.ticks++
	for {
		n.fired = n.core.table.Expire(w.now.MonoMs, n.fired[:0], expireBatch)
		for i := range n.fired {
			lane := n.laneOf(n.fired[i].Handle.Session().Shard())
			lane.fired = append(lane.fired, n.fired[i])
			lane.wake()
		}
		if len(n.fired) < expireBatch {
			break
		}
	}
	every := max(1, int(100/w.plan.tickMs))
	if n.ticks%every == 0 {
		for _, l := range n.lanes {
			if l.engine.Ticking() {
				l.post("tick", (*Engine).Tick)
			}
		}
	}
	if n.ticks%(every*10) == 0 && !w.chance(w.plan.lazySweep) {
		n.sweep()
	}
	if n.ticks%512 == 0 {
		n.core.table.Check()
	}
	w.steps-- // a tick is no event
	w.after(w.plan.tickMs, n.tick)
}

func (n *simNode) sweep() {
	n.core.sweep(&n.sweeping, 64, n.w.now, func(o overdue) {
		n.laneOfUser(o.user).post("expire", func(e *Engine, now Now) { e.Expire(o, now) })
	})
}

func (n *simNode) laneOf(shard int) *simLane { return n.lanes[shard%len(n.lanes)] }

func (n *simNode) laneOfUser(user string) *simLane {
	return n.laneOf(ack.ShardOf(newLink(LoginRequest{User: []byte(user)}).userHash))
}

// simLane is a lane: an engine, an inbox, and no goroutine.
type simLane struct {
	node   *simNode
	engine *Engine
	events []simCall
	fired  []ack.Expired
	awake  bool
	away   bool // GOAWAY went out: nothing new is sent any more
}

type simCall struct {
	name string
	do   func(*Engine, Now)
}

func (l *simLane) post(name string, do func(*Engine, Now)) {
	l.events = append(l.events, simCall{name, do})
	l.wake()
}

// wake has the lane run soon; a busy machine lets it wait.
func (l *simLane) wake() {
	if l.awake {
		return
	}
	l.awake = true
	w := l.node.w
	delay := int64(0)
	if w.chance(w.plan.laneSlow) {
		delay = w.between(1, w.plan.laneSlowMs)
	}
	w.after(delay, l.run)
}

// run works through the inbox as lane.run does: timers first, then events, then one round of pumping.
func (l *simLane) run() {
	w := l.node.w
	if w.node != l.node {
		return
	}
	l.awake = false
	events, fired := l.events, l.fired
	l.events, l.fired = nil, nil
	for i := range fired {
		w.elsewhere()
		l.do("fired", func(e *Engine, now Now) { e.Fired(&fired[i], now) })
	}
	for i := range events {
		w.elsewhere()
		l.do(events[i].name, events[i].do)
	}
	more := false
	l.do("turn", func(e *Engine, now Now) { more = e.Turn(now) })
	l.check()
	if more {
		l.wake()
	}
}

func (l *simLane) do(name string, do func(*Engine, Now)) {
	l.node.w.doing = name
	do(l.engine, l.node.w.now)
	l.node.w.doing = ""
	for _, c := range l.node.w.conns {
		c.watchParking()
	}
}

// elsewhere is an event loop that is faster than the lane: what is on its way to the server is handled now.
func (w *sim) elsewhere() {
	if len(w.conns) == 0 || !w.chance(w.plan.race) {
		return
	}
	c := w.conns[w.rand.IntN(len(w.conns))]
	if len(c.inbound) > 0 {
		c.hear()
	}
}

// crash is kill -9: whatever was only in memory is lost. How much of what was not yet confirmed had reached the disk is luck.
func (w *sim) crash() {
	if w.node == nil {
		return
	}
	if w.chance(0.5) {
		w.store.keepSome(w.rand)
	}
	w.logf("kill -9: %d messages stored", w.store.live)
	w.stop()
	w.after(w.between(0, 2000), w.boot)
}

// stop ends the process, whatever it was doing.
func (w *sim) stop() {
	w.node = nil
	w.followed = nil
	w.store.restart()
	for _, c := range w.conns {
		c.severed()
	}
	w.conns = w.conns[:0]
}

// drain is a graceful restart.
func (w *sim) drain() {
	n := w.node
	if n == nil || n.draining {
		return
	}
	w.logf("drain")
	n.draining = true
	windowMs, deadlineMs := w.between(0, 3000), w.between(1000, 8000)
	for _, l := range n.lanes {
		l.post("goaway", func(e *Engine, now Now) {
			e.GoAway(windowMs, deadlineMs, "", now)
			l.away = true
		})
	}
	w.after(deadlineMs, func() {
		if w.node != n {
			return
		}
		for _, l := range n.lanes {
			l.post("close all", func(e *Engine, _ Now) { e.CloseAll(codec.CodeGoingAway, stoppingReason) })
		}
	})
	w.after(deadlineMs+2000, func() {
		if w.node != n {
			return
		}
		w.store.commit()
		w.logf("the process ends")
		w.stop()
		w.after(w.between(0, 2000), w.boot)
	})
}

// check looks at what must hold after every round of a lane, by other means than the engine's own where there are any.
func (l *simLane) check() {
	l.engine.Check()
	for _, c := range l.node.w.conns {
		if c.lane == l && c.link.state == linkOpen {
			c.check()
		}
	}
}

// forget drops connections the server is done with.
func (w *sim) forget() {
	w.conns = slices.DeleteFunc(w.conns, func(c *simConn) bool { return c.over })
}

// simStart is when every world begins.
func simStart() Now {
	return Now{MonoMs: 1000, WallMs: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMilli()}
}
