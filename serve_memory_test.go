package main

import "testing"

func TestMemoryIsTrimmedWhenTheNodeIsQuietAndItPays(t *testing.T) {
	const mb = 1 << 20
	busy := heap{allocated: 100 * mb, objects: 40 * mb, live: 20 * mb, free: 5 * mb}
	for _, test := range []struct {
		name string
		t    trimmer
		next []heap
		want bool // after the last one
	}{
		{"busy", trimmer{}, []heap{busy, {110 * mb, 40 * mb, 20 * mb, 5 * mb}, {120 * mb, 40 * mb, 20 * mb, 5 * mb}}, false},
		{"quiet for one look", trimmer{}, []heap{busy, busy}, false},
		{"quiet", trimmer{}, []heap{busy, busy, busy}, true},
		{"quiet, and little to gain", trimmer{}, []heap{{100 * mb, 21 * mb, 20 * mb, 0}, {100 * mb, 21 * mb, 20 * mb, 0}, {100 * mb, 21 * mb, 20 * mb, 0}}, false},
		{"quiet, and no more to gain than the last time", trimmer{left: 25 * mb}, []heap{busy, busy, busy}, false},
		{"quiet, a large heap with a part to gain", trimmer{}, []heap{{0, 1040 * mb, 1000 * mb, 0}, {0, 1040 * mb, 1000 * mb, 0}}, false},
	} {
		var got bool
		for _, h := range test.next {
			got = test.t.due(h)
		}
		if got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func TestTheHeapIsRead(t *testing.T) {
	h := readHeap()
	if h.allocated == 0 || h.objects == 0 {
		t.Errorf("%+v", h)
	}
	tr := startTrimmer()
	tr.end()
}
