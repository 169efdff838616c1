//go:build !race

package ack

import (
	"runtime"
	"testing"
)

// scale divides the length of the long single-threaded tests, for which the race detector has nothing to say.
const scale = 1

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestMemoryPerEntryAndPerIdleSession(t *testing.T) {
	const entries, window, idle = 1_000_000, 64, 200_000
	before := heapBytes()
	table := NewTable(Config{}, 1)
	for user := range uint64(entries / window) {
		s := table.Open(Open{UserHash: user, Window: Window{MsgsMax: window, BytesMax: 1 << 20}})
		for range window {
			table.Add(s, Add{Bytes: 1, DeadlineMs: 5000, NowMs: 1})
		}
	}
	filled := heapBytes()
	if per := float64(filled-before) / entries; per > 100 {
		t.Errorf("%.1f bytes an entry, want at most 100", per)
	}
	for user := range uint64(idle) {
		table.Open(Open{UserHash: user})
	}
	if per := float64(heapBytes()-filled) / idle; per > 80 {
		t.Errorf("%.1f bytes an idle session, want at most 80", per)
	}
	runtime.KeepAlive(table)
}
