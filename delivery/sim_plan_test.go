package delivery

import (
	"fmt"
	"time"

	"holdfast/scheduler"
)

// simPlan is what one run is like: its settings and how much of each trouble it has. All of it is drawn from the seed.
type simPlan struct {
	config Config
	steps  int

	users, devicesMax int

	tickMs     int64
	laneSlow   float64 // chance of a lane being slow, and by how much
	laneSlowMs int64
	race       float64 // chance of an event loop acting in the middle of a lane's work
	lazySweep  float64

	delayMs   int64 // one way, at most
	publishMs int64 // mean distance of two publishes
	ttl       float64
	ttlMaxMs  int64
	noAck     float64
	repeat    float64 // the same message id again
	named     float64 // to one device
	cancel    float64
	urgent    float64
	bulk      float64
	poison    float64
	payload   int

	syncMs     int64 // distance of two commits; 0: at once
	refuse     float64
	failRead   float64
	failClaim  float64
	troubleMs  int64 // mean distance of two troubles of the network
	crash      float64
	drain      float64
	outboxMax  int // frames
	hearMs     int64
	noticeMs   int64 // until the server sees that a client is gone
	reconnects int64 // ms until a client comes back, at most
}

// draw decides what this run is like.
func (w *sim) draw(steps int) {
	p := &w.plan
	p.steps = steps
	p.config = w.drawConfig()
	p.users, p.devicesMax = int(w.between(1, 5)), int(w.between(1, 3))
	p.tickMs = pick[int64](w, 10, 20, 50, 100)
	p.laneSlow, p.laneSlowMs = w.sometimes(0.3), pick[int64](w, 5, 50, 500, 3000)
	p.race = w.sometimes(0.5)
	p.lazySweep = w.sometimes(1)
	p.delayMs = pick[int64](w, 0, 5, 50, 500, 3000)
	p.publishMs = pick[int64](w, 30, 100, 300, 1000, 4000)
	p.ttl, p.ttlMaxMs = w.sometimes(0.7), pick[int64](w, 500, 5_000, 60_000)
	p.noAck, p.repeat, p.named, p.cancel = w.sometimes(0.2), w.sometimes(0.3), w.sometimes(0.3), w.sometimes(0.1)
	p.urgent, p.bulk, p.poison = w.sometimes(0.4), w.sometimes(0.4), w.sometimes(0.03)
	p.payload = pick(w, 0, 20, 300, 3000)
	p.syncMs = pick[int64](w, 0, 1, 10, 200, 3000)
	p.refuse, p.failRead, p.failClaim = w.sometimes(0.2), w.sometimes(0.2), w.sometimes(0.2)
	p.troubleMs = pick[int64](w, 200, 1000, 5000)
	p.crash, p.drain = w.sometimes(0.05), w.sometimes(0.03)
	p.outboxMax = pick(w, 2, 8, 1000)
	p.hearMs = pick[int64](w, 0, 100, 2000)
	p.noticeMs = pick[int64](w, 10, 1000, 20_000)
	p.reconnects = pick[int64](w, 10, 1000, 10_000)
}

func (w *sim) drawConfig() Config {
	c := DefaultConfig()
	c.Lanes = int(w.between(1, 3))
	c.AckTimeout = time.Duration(pick[int64](w, 300, 1000, 2000, 5000)) * time.Millisecond
	c.LiveAttemptsMax = int(w.between(1, 4))
	c.LifeAttemptsMax = int(w.between(int64(c.LiveAttemptsMax), 20))
	if w.chance(0.2) {
		c.AfterLast = AfterLastDead
	}
	c.Backoff = pick(w, scheduler.Standard(), scheduler.Steep())
	if w.chance(0.5) {
		c.RetryBudgetFloor, c.RetryBudgetShare = int(w.between(1, 5)), pick(w, 0, 0.1, 0.5)
	}
	c.WindowMsgs = pick(w, 1, 2, 4, 16, 64)
	c.WindowBytes = pick(w, 1, 500, 3000, 256<<10)
	c.UserResendMax = pick(w, 1, 4, 200, 200)
	c.UserParkedMax = pick(w, 1, 4, 200, 200)
	c.StuckClose = time.Duration(w.between(1, 20)) * time.Second
	c.NackDelayMax = time.Duration(w.between(1, 40)) * time.Second
	c.ExtendMax = time.Duration(w.between(0, 20)) * time.Second
	c.Retention = time.Duration(pick[int64](w, 30, 3600, 86400)) * time.Second
	if w.chance(0.3) {
		c.LoginsPerMinute, c.LoginBurst = float64(w.between(5, 60)), int(w.between(1, 5))
	}
	if w.chance(0.3) {
		c.PaceUserPerSecond = float64(w.between(5, 200))
	}
	if w.chance(0.2) {
		c.PaceNodePerSecond = float64(w.between(10, 300))
	}
	return c
}

// String is the settings that differ between runs.
func (p *simPlan) String() string {
	c := &p.config
	return fmt.Sprintf("ACK timeout %s, attempts %d live %d life, after the last %d, window %d messages %d bytes, resend %d parked %d, budget %g+%d, stuck %s, "+
		"nack %s, extend %s, retention %s, lanes %d, tick %d ms, delay %d ms, commit %d ms, outbox %d, pace %g a user %g, troubles every %d ms",
		c.AckTimeout, c.LiveAttemptsMax, c.LifeAttemptsMax, c.AfterLast, c.WindowMsgs, c.WindowBytes, c.UserResendMax, c.UserParkedMax,
		c.RetryBudgetShare, c.RetryBudgetFloor, c.StuckClose, c.NackDelayMax, c.ExtendMax, c.Retention, c.Lanes, p.tickMs, p.delayMs, p.syncMs, p.outboxMax,
		c.PaceNodePerSecond, c.PaceUserPerSecond, p.troubleMs)
}
