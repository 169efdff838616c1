package ack

import "testing"

func TestRetractGivesTheNumberOutAgain(t *testing.T) {
	table := NewTable(Config{}, 1)
	s := table.Open(Open{UserHash: 7, Window: Window{MsgsMax: 8, BytesMax: 1 << 20}})
	add := func(seq uint64) (Handle, uint64) {
		h, number, r := table.Add(s, Add{Ref: Ref{Seq: seq}, Bytes: 10, Status: 2, DeadlineMs: 100, NowMs: 1})
		if r != AddOK {
			t.Fatalf("add %d: %d", seq, r)
		}
		return h, number
	}
	first, _ := add(1)
	second, _ := add(2)
	if table.Retract(first) {
		t.Fatal("an entry that is not the latest was retracted")
	}
	if !table.Retract(second) || table.Retract(second) {
		t.Fatal("the latest entry can be retracted once")
	}
	if _, r := table.Ack(s, 2, 1, 5, nil); !r.Never {
		t.Fatal("a retracted number counts as given out")
	}
	if _, number := add(3); number != 2 {
		t.Fatalf("the next number is %d, want 2", number)
	}
	if left, r := table.AckUpTo(s, 2, 6, nil); len(left) != 2 || r.Never {
		t.Fatalf("%d entries, %+v", len(left), r)
	}
	if !table.Retract(func() Handle { h, _ := add(4); return h }()) {
		t.Fatal("the only entry cannot be retracted")
	}
	table.Check()
}
