package conn

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
)

// codesMax is above every close code there is.
const codesMax = 128

// loopStats are the counters of one loop: not shared between loops, so that counting never bounces a cache line.
type loopStats struct {
	accepts, closes, logins, peerCloses    atomic.Uint64
	framesIn, framesOut, bytesIn, bytesOut atomic.Uint64
	writes, outboxFull, refusedConns       atomic.Uint64
	closesByCode, refusedByCode            [codesMax]atomic.Uint64
}

func (x *loopStats) closed(code codec.Code)  { x.closesByCode[min(code, codesMax-1)].Add(1) }
func (x *loopStats) refused(code codec.Code) { x.refusedByCode[min(code, codesMax-1)].Add(1) }

// Stats is what a server has counted since it started.
type Stats struct {
	Conns        int    // open now, lingering ones included
	ConnsMax     int    // the limit in force
	Accepts      uint64 // connections taken
	RefusedConns uint64 // connections over the limit or while draining, closed at once
	Closes       uint64
	Logins       uint64 // accepted
	PeerCloses   uint64 // clients that said CLOSE
	FramesIn     uint64
	FramesOut    uint64
	BytesIn      uint64
	BytesOut     uint64
	Writes       uint64 // write system calls
	OutboxFull   uint64 // Sends refused by the high watermark
	// LoginsRefused and ClosesByCode count what this side ended, by code; codes never used are absent.
	LoginsRefused map[codec.Code]uint64
	ClosesByCode  map[codec.Code]uint64
}

// Stats adds up the counters of all loops.
func (s *Server) Stats() Stats {
	st := Stats{
		Conns: int(s.conns.Load()), ConnsMax: s.connsMax,
		LoginsRefused: make(map[codec.Code]uint64), ClosesByCode: make(map[codec.Code]uint64),
	}
	for _, l := range s.allLoops() {
		x := &l.stats
		st.Accepts += x.accepts.Load()
		st.RefusedConns += x.refusedConns.Load()
		st.Closes += x.closes.Load()
		st.Logins += x.logins.Load()
		st.PeerCloses += x.peerCloses.Load()
		st.FramesIn += x.framesIn.Load()
		st.FramesOut += x.framesOut.Load()
		st.BytesIn += x.bytesIn.Load()
		st.BytesOut += x.bytesOut.Load()
		st.Writes += x.writes.Load()
		st.OutboxFull += x.outboxFull.Load()
		for code := range codesMax {
			if n := x.refusedByCode[code].Load(); n > 0 {
				st.LoginsRefused[codec.Code(code)] += n
			}
			if n := x.closesByCode[code].Load(); n > 0 {
				st.ClosesByCode[codec.Code(code)] += n
			}
		}
	}
	return st
}

// writeMetrics renders Stats in the Prometheus text format.
func (s *Server) writeMetrics(w io.Writer) {
	st := s.Stats()
	metrics.WriteGaugeUint64(w, "holdfast_conn_connections", uint64(st.Conns))
	metrics.WriteGaugeUint64(w, "holdfast_conn_connections_max", uint64(st.ConnsMax))
	for _, c := range []struct {
		name  string
		value uint64
	}{
		{"accepts_total", st.Accepts}, {"connections_refused_total", st.RefusedConns}, {"disconnects_total", st.Closes},
		{"logins_total", st.Logins}, {"peer_closes_total", st.PeerCloses},
		{"frames_in_total", st.FramesIn}, {"frames_out_total", st.FramesOut},
		{"bytes_in_total", st.BytesIn}, {"bytes_out_total", st.BytesOut}, {"writes_total", st.Writes},
		{"outbox_full_total", st.OutboxFull}, {"slow_consumers_total", st.ClosesByCode[codec.CodeSlowConsumer]},
	} {
		metrics.WriteCounterUint64(w, "holdfast_conn_"+c.name, c.value)
	}
	for code := range codec.Code(codesMax) {
		if n := st.LoginsRefused[code]; n > 0 {
			metrics.WriteCounterUint64(w, fmt.Sprintf("holdfast_conn_logins_refused_total{code=%q}", code), n)
		}
		if n := st.ClosesByCode[code]; n > 0 {
			metrics.WriteCounterUint64(w, fmt.Sprintf("holdfast_conn_closes_total{code=%q}", code), n)
		}
	}
}
