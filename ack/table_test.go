package ack

import (
	"math"
	"math/rand/v2"
	"testing"
)

// drive turns bytes into operations on a model and its table: three a step.
func drive(t testing.TB, ops []byte) {
	m := newModel(t, Config{UserResendMax: 3, UserParkedMax: 4})
	refs := uint64(0)
	step := 0
	for ; len(ops) >= 3 && step < 1500; ops, step = ops[3:], step+1 {
		op, a, b := ops[0]%20, int(ops[1]), int(ops[2])
		if len(m.sessions) == 0 || op == 0 && len(m.sessions) < 40 {
			m.open(uint64(a%3), Window{MsgsMax: 1 + b%9, BytesMax: 100 + b*10})
			continue
		}
		// Late sessions are chosen more often, early ones stay as stale ones to poke at.
		x := m.sessions[len(m.sessions)-1-(a%len(m.sessions))*(a%3)/2%len(m.sessions)]
		var h Handle
		if len(m.handles) > 0 {
			h = m.handles[len(m.handles)-1-a%min(len(m.handles), 24)]
		}
		u := Update{Status: uint8(b % StatusCount), DeadlineMs: m.nowMs + int64(a%50)*10, Attempts: b, Live: uint8(a), Flags: uint8(b), Resend: b%2 == 0}
		if b%3 == 0 {
			u.SentMs, u.DeadlineMs = m.nowMs, 0
		}
		switch op {
		case 1, 2, 3, 4, 5, 6:
			refs++
			add := Add{Ref: Ref{Seq: refs, Slot: uint32(b)}, Bytes: b * 2, Attempts: a, Status: uint8(a % StatusCount), Flags: uint8(b), NowMs: m.nowMs}
			if b%5 > 0 {
				add.DeadlineMs = m.nowMs + int64(a)*int64(b)
			}
			m.add(x, add)
		case 7, 8:
			m.ack(x, uint64(max(int(x.next)-1-b%16, 0)), uint64(b/16%5), false)
		case 9:
			m.ack(x, 1, uint64(max(int(x.next)-b%16, 0)), true)
		case 10:
			if b%4 == 0 {
				m.ack(x, uint64(b), math.MaxUint64-uint64(a), false)
			} else {
				m.ack(x, uint64(b%4), x.next-1, false)
			}
		case 11, 12:
			m.nowMs += int64(a) * int64(b%32)
			m.expire(1 + b%7)
		case 13:
			m.rearm(h, u)
		case 14:
			m.park(h, u.Status)
		case 15:
			m.unpark(h, u)
		case 16:
			m.take(h)
		case 17:
			m.setWindow(x, Window{MsgsMax: 1 + b%20, BytesMax: 1 + b*20})
		case 18:
			m.look(x)
		case 19:
			if b%8 == 0 {
				m.evict(x)
			}
		}
		if step%16 == 0 {
			m.table.Check()
		}
	}
	for _, x := range m.sessions {
		m.look(x)
		m.evict(x)
	}
	m.table.Check()
	if st := m.table.Stats(); st.Sessions != 0 || st.Entries != 0 || st.Parked != 0 || st.Resend != 0 {
		t.Fatalf("an empty table counts %+v", st)
	}
}

func TestTableAgreesWithAModelUnderRandomOperations(t *testing.T) {
	for seed := range uint64(20 / min(scale, 7)) {
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
