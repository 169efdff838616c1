package delivery

import (
	"fmt"

	"holdfast/codec"
)

// recover is the end of every run: the faults stop, clients become good, and everything that was accepted has to arrive, in bounded
// time. In the first part connections stay as they are, so that a wake-up that was lost is not healed by a login; in the second one
// every device logs in anew.
func (w *sim) recover() {
	w.heal()
	w.untilStill(w.healMs())
	w.ledger.balance()
	w.explainAll()
	for range 2 {
		w.relogin()
		w.untilStill(w.healMs() / 2)
	}
	w.ledger.balance()
	w.follow()
	for _, d := range w.ledger.all {
		switch {
		case d.live():
			w.fail("%s is held although its device logged in and confirms everything; attempts %d", d, d.attempt)
		case d.answered && d.status == StatusAcked && !w.ledger.arrived(d):
			w.fail("%s is acknowledged and never arrived", d)
		}
	}
	if stats := w.node.core.table.Stats(); stats.Entries != 0 {
		w.fail("%d entries are left in the table", stats.Entries)
	}
	w.node.core.table.Check()
}

// untilStill lets the time pass, and then as much more as messages go on ending: pacing, a window of one message and ticks that are
// far apart multiply.
func (w *sim) untilStill(spanMs int64) {
	w.until(w.now.MonoMs + spanMs)
	for range 200 {
		live := w.store.live
		w.until(w.now.MonoMs + 30_000 + 4*w.plan.config.AckTimeout.Milliseconds())
		if live == 0 || w.store.live >= live {
			return
		}
	}
}

// healMs bounds how long anything may take once nothing fails any more.
func (w *sim) healMs() int64 {
	c := &w.plan.config
	timeout := c.AckTimeout.Milliseconds()
	paceMs := int64(0)
	for _, rate := range []float64{c.PaceNodePerSecond, c.PaceUserPerSecond} {
		if rate > 0 {
			paceMs += int64(float64(w.store.live) * 1500 / rate)
		}
	}
	return paceMs + 80*timeout + 2*c.NackDelayMax.Milliseconds() + c.ExtendMax.Milliseconds() + c.StuckClose.Milliseconds() + 120_000
}

func (w *sim) heal() {
	w.logf("the faults stop")
	w.calm = true
	p := &w.plan
	p.laneSlow, p.race, p.lazySweep, p.tickMs = 0, 0, 0, max(100, p.config.AckTimeout.Milliseconds()/10)
	p.syncMs = 10
	w.store.queueMax = 0 // a fresh message always finds room
	if w.node == nil {
		w.until(w.now.MonoMs + 5000)
	}
	for _, c := range w.conns {
		c.slowMs = 0
		c.thaw()
	}
	for _, u := range w.users {
		for _, d := range u.devices {
			if d.conn == nil {
				d.later(0)
			}
		}
		for i := range int64(4) { // a fresh message wakes a link that was parked
			w.after(i*w.healMs()/5+1, func() { w.freshen(u) })
		}
	}
}

// freshen pushes one good message to a user.
func (w *sim) freshen(u *simUser) {
	w.pushBatch(1, func() codec.PublishItem {
		id := w.newID()
		x := codec.PublishItem{User: []byte(u.name), MessageID: []byte(id), Payload: []byte("fresh")}
		w.published = append(w.published, x)
		return x
	})
}

func (w *sim) relogin() {
	w.logf("every device logs in anew")
	for _, u := range w.users {
		for _, d := range u.devices {
			if c := d.conn; c != nil {
				d.flush(c)
				c.finish()
				d.lost(c, 0)
			}
		}
	}
}

// explainAll fails when a message waits at a connected, willing device for a reason that is none.
func (w *sim) explainAll() {
	for _, d := range w.ledger.all {
		if !d.live() {
			continue
		}
		if why := w.explain(d); why != "" {
			w.fail("%s waits: %s", d, why)
		}
	}
}

// explain is empty when a message may wait for the next login.
func (w *sim) explain(d *simDelivery) string {
	q := w.store.Queue(d.queue)
	lane := w.node.laneOfUser(q.User)
	user := lane.engine.users[q.User]
	if user == nil || user.byDevice(q.Device) == nil {
		return "its device is not connected"
	}
	l := user.byDevice(q.Device)
	_, e, ok := w.node.core.table.Find(l.session, fromRef(d.ref))
	state, _ := w.node.core.table.State(l.session)
	about := fmt.Sprintf("a link that is %s, held %b, %d in flight, %d parked, resume %v, queued %v, tended %v, retry in %d ms, wake queued %v, cursor %v",
		l.describe(), l.hold, state.InFlight, state.Parked, l.resume, l.queued, l.tended, l.retryMs-w.now.MonoMs, l.wakeQueued.Load(), l.cursor)
	switch {
	case !ok && w.node.core.table.Stats().ParkRemoved > 0:
		return "" // over the limit of parked messages (R11)
	case !ok:
		return "not in flight on " + about
	case e.Parked && int(e.Live) >= w.plan.config.LiveAttemptsMax:
		return "" // it had its live attempts
	case e.Parked && Status(e.Status) == StatusOffline && l.hold&holdParked == 0 && w.plan.config.UserResendMax < 200:
		return "" // over the limit of resending (R11)
	default:
		return fmt.Sprintf("%s, parked %v, live %d, on %s", Status(e.Status), e.Parked, e.Live, about)
	}
}
