package store

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast/codec"
	"holdfast/delivery"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the model test; 0: a new one")

// model is the store as one would write it on a blackboard.
type model struct {
	t    *testing.T
	r    *rand.Rand
	cfg  Config
	l    *Local
	live map[string][]modelMessage // by user
	dead []modelMessage
	ids  map[string]string // message id -> user
	n    int
	now  int64

	elided, moved, removed int64 // over all restarts
}

type modelMessage struct {
	id, user string
	ref      delivery.Ref
	class    codec.Priority
	attempts uint16
	text     string
}

// A random walk of operations and restarts, compared with a naive model. Run again with -seed.
func TestBehavesLikeItsModelOverRestarts(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", seed)
	m := &model{t: t, r: rand.New(rand.NewPCG(seed, 1)), live: map[string][]modelMessage{}, ids: map[string]string{},
		cfg: Config{Dir: t.TempDir(), SegmentBytes: 8 << 10, StorageBytesMax: 1 << 27, QueueMessagesMax: 500,
			CommitDelay: 50 * time.Microsecond, LazyDelay: 200 * time.Microsecond}}
	m.now = time.Now().UnixMilli()
	m.l = open(t, m.cfg)
	for step := range 4000 {
		switch k := m.r.IntN(1000); {
		case k < 450:
			m.append()
		case k < 850:
			m.end()
		case k < 900:
			m.note()
		case k < 940:
			m.repeat()
		case k < 960:
			m.claim()
		case k < 985:
			m.check(step)
		case k < 990:
			m.dropDead()
		case k < 994:
			m.restart(step)
		case k < 997:
			m.l.SweepExpired(nil, m.now+dayMs/2, 10) // forgets default queues
		default:
			m.find()
		}
	}
	m.restart(4000)
	shut(t, m.l)
	t.Logf("%d taken, %d elided, %d moved, %d segments removed", m.n, m.elided, m.moved, m.removed)
	if m.elided == 0 || m.moved == 0 || m.removed == 0 {
		t.Fatal("the walk missed a part of the engine")
	}
}

func (m *model) user() string { return fmt.Sprint("user", m.r.IntN(7)) }

func (m *model) append() {
	user := m.user()
	m.n++
	id := fmt.Sprint("id", m.n)
	qs, dup, r := m.l.Targets(nil, []byte(user), nil, []byte(id), m.now)
	if dup || r != codec.ResultAccepted || len(qs) != 1 {
		m.t.Fatalf("targets of a new id: %v %d %v", dup, r, qs)
	}
	msg := modelMessage{id: id, user: user, class: codec.Priority(m.r.IntN(3)), text: id + string(make([]byte, m.r.IntN(700)))}
	var w delivery.Waiter
	a := newAnswers()
	if m.r.IntN(20) == 0 {
		w = a
	}
	msg.ref, r = m.l.Append(qs[0], []byte(msg.text), delivery.Meta{MessageID: []byte(id), Priority: msg.class, AcceptedMs: m.now,
		ExpireAtMs: m.now + dayMs}, w, 0)
	if full := len(m.live[user]) >= m.cfg.QueueMessagesMax; full != (r == codec.ResultQueueFull) || (!full && r != codec.ResultAccepted) {
		m.t.Fatalf("append to %d messages: %d", len(m.live[user]), r)
	}
	if r != codec.ResultAccepted {
		return
	}
	if w != nil && a.wait(0) != codec.ResultAccepted {
		m.t.Fatal("not stored")
	}
	m.live[user] = append(m.live[user], msg)
	m.ids[id] = user
}

// pick returns a live message, mostly an old one.
func (m *model) pick() (user string, i int, ok bool) {
	user = m.user()
	n := len(m.live[user])
	if n == 0 {
		return user, 0, false
	}
	return user, m.r.IntN(max(1, n/(1+m.r.IntN(4)))), true
}

func (m *model) end() {
	user, i, ok := m.pick()
	if !ok {
		return
	}
	msg := m.live[user][i]
	status := []delivery.Status{delivery.StatusAcked, delivery.StatusAcked, delivery.StatusExpired, delivery.StatusCancelled, delivery.StatusDead}[m.r.IntN(5)]
	if status == delivery.StatusDead && m.r.IntN(4) > 0 {
		status = delivery.StatusAcked
	}
	ends := []delivery.Ending{{Ref: msg.ref, Status: status, Reason: delivery.ReasonAttempts}, {Ref: msg.ref, Status: delivery.StatusAcked}}
	if n := m.l.End(ends, m.now); n != 1 || !ends[0].Won || ends[1].Won {
		m.t.Fatalf("end of %s: %d %+v", msg.id, n, ends)
	}
	m.live[user] = slices.Delete(m.live[user], i, i+1)
	if status == delivery.StatusDead {
		m.dead = append(m.dead, msg)
		slices.SortFunc(m.dead, func(a, b modelMessage) int { return int(int64(a.ref.Seq) - int64(b.ref.Seq)) })
	}
}

func (m *model) note() {
	if user, i, ok := m.pick(); ok {
		msg := &m.live[user][i]
		msg.attempts++
		m.l.Note(msg.ref, msg.attempts, true)
	}
}

func (m *model) repeat() {
	for id, user := range m.ids {
		if _, dup, _ := m.l.Targets(nil, []byte(user), nil, []byte(id), m.now); !dup {
			m.t.Fatalf("%s of %s is no duplicate", id, user)
		}
		return
	}
}

func (m *model) claim() {
	if _, err := m.l.Claim([]byte(m.user()), []byte("phone"), m.now); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) dropDead() {
	if len(m.dead) == 0 {
		return
	}
	i := m.r.IntN(len(m.dead))
	if ok, err := m.l.DropDead(m.dead[i].ref.Seq); !ok || err != nil {
		m.t.Fatalf("dropping %s: %v %v", m.dead[i].id, ok, err)
	}
	m.dead = slices.Delete(m.dead, i, i+1)
}

func (m *model) find() {
	for id := range m.ids {
		records := m.l.Find(id)
		if len(records) != 1 || records[0].User != m.ids[id] {
			m.t.Fatalf("find %s: %+v", id, records)
		}
		return
	}
}

func (m *model) restart(step int) {
	m.check(step)
	st := m.l.Stats()
	m.elided, m.moved, m.removed = m.elided+st.Elided, m.moved+st.Moved, m.removed+st.SegmentsRemoved
	shut(m.t, m.l)
	m.l = open(m.t, m.cfg)
	for user := range m.live {
		msgs := m.live[user]
		at := 0
		var b delivery.Buffer
		for _, q := range m.l.UserQueues(user) {
			for p := codec.PriorityNormal; p <= codec.PriorityBulk; p++ {
				after := uint64(0)
				for {
					items, err := m.l.Next(&b, q.ID, p, after, 100, 1<<20)
					if err != nil {
						m.t.Fatal(err)
					}
					if len(items) == 0 {
						break
					}
					for _, it := range items {
						after = it.Ref.Seq
						i := slices.IndexFunc(msgs, func(x modelMessage) bool { return x.ref.Seq == it.Ref.Seq })
						if i < 0 {
							m.t.Fatalf("step %d: seq %d of %s came back", step, it.Ref.Seq, user)
						}
						msgs[i].ref = it.Ref // the slot may have changed
						at++
					}
				}
			}
		}
		if at != len(msgs) {
			m.t.Fatalf("step %d: %d messages of %s after the restart, want %d", step, at, user, len(msgs))
		}
	}
	m.check(step)
}

// check compares everything.
func (m *model) check(step int) {
	live := 0
	for user, msgs := range m.live {
		live += len(msgs)
		qs := m.l.UserQueues(user)
		if len(msgs) == 0 && len(qs) == 0 {
			continue // an empty default queue is not remembered over a restart
		}
		if len(qs) != 1 || qs[0].Messages != len(msgs) {
			m.t.Fatalf("step %d: queues of %s are %+v, want one with %d messages", step, user, qs, len(msgs))
		}
		for p := codec.PriorityNormal; p <= codec.PriorityBulk; p++ {
			var want []modelMessage
			for _, x := range msgs {
				if x.class == p {
					want = append(want, x)
				}
			}
			m.checkClass(step, qs[0].ID, p, want)
		}
	}
	letters, err := m.l.DeadLetters(0, 1<<20)
	if err != nil || len(letters) != len(m.dead) {
		m.t.Fatalf("step %d: %d dead letters, want %d, %v", step, len(letters), len(m.dead), err)
	}
	for i, d := range letters {
		if d.Record.MessageID != m.dead[i].id || string(d.Command) != m.dead[i].text {
			m.t.Fatalf("step %d: dead letter %d is %+v, want %s", step, i, d.Record, m.dead[i].id)
		}
	}
	m.l.mu.Lock()
	entries := m.l.slab.used
	m.l.mu.Unlock()
	if entries != live+len(m.dead) {
		m.t.Fatalf("step %d: %d entries in the index, want %d", step, entries, live+len(m.dead))
	}
	balanced(m.t, m.l)
	checkNames(m.t, m.l)
}

func (m *model) checkClass(step int, q delivery.QueueID, p codec.Priority, want []modelMessage) {
	var b delivery.Buffer
	after := uint64(0)
	for len(want) > 0 {
		items, err := m.l.Next(&b, q, p, after, 1+m.r.IntN(200), 1+m.r.IntN(100_000))
		if err != nil || len(items) == 0 {
			m.t.Fatalf("step %d: %d items, %d expected, %v", step, len(items), len(want), err)
		}
		for _, it := range items {
			if w := want[0]; it.Ref != w.ref || string(it.Command) != w.text || it.Attempts != w.attempts || it.Sent != (w.attempts > 0) {
				m.t.Fatalf("step %d: got %v (%d attempts), want %+v", step, it.Ref, it.Attempts, w)
			}
			want = want[1:]
			after = it.Ref.Seq
		}
	}
	if items, _ := m.l.Next(&b, q, p, after, 10, 1000); len(items) != 0 {
		m.t.Fatalf("step %d: %d items too many", step, len(items))
	}
}
