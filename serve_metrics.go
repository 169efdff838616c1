package main

import (
	"fmt"
	"io"

	"github.com/VictoriaMetrics/metrics"
)

// writeStoreMetrics exports the store's figures. The ledger comes from one moment: accepted is the sum of the others, always.
func (n *node) writeStoreMetrics(w io.Writer) {
	s := n.store.Stats()
	for _, g := range []struct {
		name  string
		value int64
	}{
		{"holdfast_ledger_accepted", int64(s.Accepted)}, {"holdfast_ledger_live", int64(s.Live)}, {"holdfast_ledger_acked", int64(s.Acked)},
		{"holdfast_ledger_expired", int64(s.Expired)}, {"holdfast_ledger_cancelled", int64(s.Cancelled)}, {"holdfast_ledger_dead", int64(s.Dead)},
		{"holdfast_store_queues", int64(s.Queues)}, {"holdfast_store_dead_letters", int64(s.DeadLetters)},
		{"holdfast_store_dedup_entries", int64(s.Ended)}, {"holdfast_store_pending_bytes", int64(s.PendingBytes)},
		{"holdfast_store_bytes", s.StorageBytes}, {"holdfast_store_live_bytes", s.LiveBytes}, {"holdfast_store_segments", int64(s.Segments)},
		{"holdfast_store_full", boolInt(s.Full)},
	} {
		metrics.WriteGaugeUint64(w, g.name, uint64(max(g.value, 0)))
	}
	for _, c := range []struct {
		name  string
		value int64
	}{
		{"holdfast_store_elided_total", s.Elided}, {"holdfast_store_written_total", s.Written}, {"holdfast_store_dropped_total", s.Dropped},
		{"holdfast_store_batches_total", s.Batches}, {"holdfast_store_syncs_total", s.Syncs}, {"holdfast_store_written_bytes_total", s.BytesWritten},
		{"holdfast_store_moved_total", s.Moved}, {"holdfast_store_dead_letters_evicted_total", s.DeadEvicted},
		{"holdfast_store_dedup_shortened_total", s.DedupShortened}, {"holdfast_store_devices_forgotten_total", s.DevicesForgotten},
		{"holdfast_store_damaged_total", s.Damaged}, {"holdfast_store_lost_total", s.Lost}, {"holdfast_store_disk_full_total", s.DiskFull},
	} {
		metrics.WriteCounterUint64(w, c.name, uint64(max(c.value, 0)))
	}
	metrics.WriteCounterFloat64(w, "holdfast_store_sync_seconds_total", s.SyncTime.Seconds())
	for r, count := range s.Refused {
		metrics.WriteCounterUint64(w, fmt.Sprintf("holdfast_store_refused_total{reason=%q}", r.String()), uint64(count))
	}
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
