package ack

import (
	"math"
	"math/rand/v2"
	"testing"
)

// drive turns bytes into operations on a model and its table: three a step.
func drive(t testing.TB, ops []byte) {
	d := &driver{model: newModel(t, Config{UserResendMax: 3, UserParkedMax: 4})}
	for step := 0; len(ops) >= 3 && step < 1500; ops, step = ops[3:], step+1 {
		op, a, b := ops[0]%22, int(ops[1]), int(ops[2])
		switch {
		case len(d.sessions) == 0 || op == 0 && len(d.sessions) < 40:
			d.open(uint64(a%3), Window{MsgsMax: 1 + b%9, BytesMax: 100 + b*10})
		case op < 13:
			d.traffic(op, a, b)
		default:
			d.decide(op, a, b)
		}
		if step%16 == 0 {
			d.table.Check()
		}
	}
	for _, x := range d.sessions {
		d.look(x)
		d.evict(x)
	}
	d.table.Check()
	if st := d.table.Stats(); st.Sessions != 0 || st.Entries != 0 || st.Parked != 0 || st.Resend != 0 {
		t.Fatalf("an empty table counts %+v", st)
	}
}

type driver struct {
	*model
	refs uint64
}

// session chooses late sessions more often; early ones stay as stale ones to poke at.
func (d *driver) session(a int) *modelSession {
	return d.sessions[len(d.sessions)-1-(a%len(d.sessions))*(a%3)/2%len(d.sessions)]
}

// traffic is what publishers, clients and the clock do.
func (d *driver) traffic(op byte, a, b int) {
	x := d.session(a)
	switch op {
	case 7, 8:
		d.ack(x, uint64(max(int(x.next)-1-b%16, 0)), uint64(b/16%5), false)
	case 9:
		d.ack(x, 1, uint64(max(int(x.next)-b%16, 0)), true)
	case 10:
		if b%4 == 0 {
			d.ack(x, uint64(b), math.MaxUint64-uint64(a), false)
		} else {
			d.ack(x, uint64(b%4), x.next-1, false)
		}
	case 11, 12:
		d.nowMs += int64(a) * int64(b%32)
		d.expire(1 + b%7)
	default:
		d.refs++
		add := Add{
			Ref: Ref{Seq: d.refs, Slot: uint32(b)}, Bytes: b * 2, Attempts: a,
			Status: uint8(a % StatusCount), Flags: uint8(b), NowMs: d.nowMs,
		}
		if b%5 > 0 {
			add.DeadlineMs = d.nowMs + int64(a)*int64(b)
		}
		d.add(x, add)
	}
}

// decide is what the engine and operators do, with any handle they ever held.
func (d *driver) decide(op byte, a, b int) {
	x := d.session(a)
	var h Handle
	if len(d.handles) > 0 {
		h = d.handles[len(d.handles)-1-a%min(len(d.handles), 24)]
	}
	u := Update{
		Status: uint8(b % StatusCount), DeadlineMs: d.nowMs + int64(a%50)*10, Attempts: b,
		Live: uint8(a), Flags: uint8(b), Resend: b%2 == 0,
	}
	if b%3 == 0 {
		u.SentMs, u.DeadlineMs = d.nowMs, 0
	}
	switch op {
	case 13:
		d.rearm(h, u)
	case 14:
		d.park(h, u.Status)
	case 15:
		d.unpark(h, u)
	case 16:
		d.take(h)
	case 17:
		d.setWindow(x, Window{MsgsMax: 1 + b%20, BytesMax: 1 + b*20})
	case 18:
		d.look(x)
	case 19:
		if b%8 == 0 {
			d.evict(x)
		}
	default:
		d.retract(h)
	}
}

func TestTableAgreesWithAModelUnderRandomOperations(t *testing.T) {
	const seeds uint64 = 20 / min(scale, 7)
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 2))
		ops := make([]byte, 3*1500)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		drive(t, ops)
	}
}

// FuzzTable lets the fuzzer choose the operations.
func FuzzTable(f *testing.F) {
	f.Add([]byte{0, 1, 200, 1, 9, 9, 1, 9, 8, 7, 0, 16, 11, 200, 31, 13, 0, 0, 14, 0, 0, 15, 0, 0, 16, 0, 0, 19, 0, 8})
	f.Fuzz(func(t *testing.T, ops []byte) { drive(t, ops) })
}
