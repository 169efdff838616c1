package delivery

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/codec"
)

// counters are the metrics of this package. They are looked up once: the hot path only adds.
type counters struct {
	accepted, duplicates *metrics.Counter // messages
	refused              map[codec.Result]*metrics.Counter

	sent, retries, acked, lateAcks, timeouts *metrics.Counter // deliveries
	expired, cancelled                       *metrics.Counter
	dead                                     [reasonCount]*metrics.Counter
	budgetEmpty, nacks, extendsRefused       *metrics.Counter
	ackIDsDropped                            *metrics.Counter

	parkedLive, parkedStalled, parkedLimit *metrics.Counter
	noAckSent, noAckOffline, noAckOutbox   *metrics.Counter
	logins, loginsRefused, takeovers       *metrics.Counter
	slowClosed, storeErrors                *metrics.Counter

	online, publishers atomic.Int64
	ackLatency         latency
}

// newCounters registers everything in set, k's gauges included.
func newCounters(set *metrics.Set, k *core) *counters {
	c := &counters{
		accepted:       set.NewCounter("holdfast_messages_accepted_total"),
		duplicates:     set.NewCounter("holdfast_messages_duplicates_total"),
		refused:        make(map[codec.Result]*metrics.Counter),
		sent:           set.NewCounter("holdfast_messages_sent_total"),
		retries:        set.NewCounter("holdfast_messages_retries_total"),
		acked:          set.NewCounter("holdfast_messages_acked_total"),
		lateAcks:       set.NewCounter("holdfast_messages_late_acks_total"),
		timeouts:       set.NewCounter("holdfast_messages_timeouts_total"),
		expired:        set.NewCounter("holdfast_messages_expired_total"),
		cancelled:      set.NewCounter("holdfast_messages_cancelled_total"),
		budgetEmpty:    set.NewCounter("holdfast_messages_retry_budget_exhausted_total"),
		nacks:          set.NewCounter("holdfast_messages_nacks_total"),
		extendsRefused: set.NewCounter("holdfast_messages_extends_refused_total"),
		ackIDsDropped:  set.NewCounter("holdfast_messages_ack_ids_dropped_total"),
		parkedLive:     set.NewCounter(`holdfast_messages_parked_total{reason="live_attempts"}`),
		parkedStalled:  set.NewCounter(`holdfast_messages_parked_total{reason="stalled"}`),
		parkedLimit:    set.NewCounter(`holdfast_messages_parked_total{reason="user_limit"}`),
		noAckSent:      set.NewCounter("holdfast_messages_noack_sent_total"),
		noAckOffline:   set.NewCounter(`holdfast_messages_noack_dropped_total{reason="offline"}`),
		noAckOutbox:    set.NewCounter(`holdfast_messages_noack_dropped_total{reason="outbox_full"}`),
		logins:         set.NewCounter("holdfast_logins_total"),
		loginsRefused:  set.NewCounter("holdfast_logins_refused_total"),
		takeovers:      set.NewCounter("holdfast_takeovers_total"),
		slowClosed:     set.NewCounter("holdfast_slow_consumers_closed_total"),
		storeErrors:    set.NewCounter("holdfast_delivery_store_errors_total"),
	}
	for r := codec.ResultOverloaded; r < codec.ResultUnknownConv+10; r++ {
		if _, known := codec.ParseResult(r.String()); known && !r.OK() {
			c.refused[r] = set.NewCounter(fmt.Sprintf("holdfast_messages_refused_total{reason=%q}", r))
		}
	}
	for r := range reasonCount {
		if r != ReasonNone {
			c.dead[r] = set.NewCounter(fmt.Sprintf("holdfast_messages_dead_total{reason=%q}", r))
		}
	}
	set.NewGauge("holdfast_online", func() float64 { return float64(c.online.Load()) })
	set.NewGauge("holdfast_publishers_online", func() float64 { return float64(c.publishers.Load()) })
	set.NewGauge("holdfast_inflight", func() float64 { s := k.table.Stats(); return float64(s.Entries - s.Parked) })
	set.NewGauge("holdfast_parked", func() float64 { return float64(k.table.Stats().Parked) })
	set.RegisterMetricsWriter(c.ackLatency.write)
	return c
}

// ended counts one delivery's end.
func (c *counters) ended(s Status, r Reason) {
	switch s {
	case StatusAcked:
		c.acked.Inc()
	case StatusExpired:
		c.expired.Inc()
	case StatusCancelled:
		c.cancelled.Inc()
	case StatusDead:
		c.dead[r].Inc()
	default:
		panic("a delivery ends in state " + s.String())
	}
}

// published counts the answer to one message.
func (c *counters) published(r codec.Result) {
	switch {
	case r == codec.ResultDuplicate:
		c.duplicates.Inc()
	case r.OK():
		c.accepted.Inc()
	default:
		if n := c.refused[r]; n != nil {
			n.Inc()
		}
	}
}

// latency is a histogram in milliseconds, buckets by powers of two. metrics.Histogram has a lock that every ACK of the node would
// take; adding to one of these words does not.
type latency struct {
	buckets [20]atomic.Uint64 // bucket i: below 1<<i ms; the last one: everything else
	sumMs   atomic.Uint64
}

func (h *latency) observe(ms int64) {
	ms = max(ms, 0)
	i := 0
	for i < len(h.buckets)-1 && ms >= 1<<i {
		i++
	}
	h.buckets[i].Add(1)
	h.sumMs.Add(uint64(ms))
}

func (h *latency) write(w io.Writer) {
	const name = "holdfast_ack_latency_seconds"
	total := uint64(0)
	for i := range h.buckets {
		total += h.buckets[i].Load()
		if i < len(h.buckets)-1 {
			fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, float64(int(1)<<i)/1000, total)
		}
	}
	fmt.Fprintf(w, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %g\n%s_count %d\n", name, total, name, float64(h.sumMs.Load())/1000, name, total)
}
