package store

import (
	"slices"

	"holdfast/codec"
	"holdfast/delivery"
)

// A push for several devices is several records, and a crash may leave some of them on the disk and not the others: a batch was cut
// between them, or the kernel stopped in the middle of a write. Nobody was answered, so the publisher repeats the push, and its id is
// known. To call that a duplicate would lose the message for the devices whose record is missing. So what was accepted shortly before
// a start is in doubt: a repeat of it goes to the devices that have no copy.

// doubtSpan is how far behind the newest recovered record another record of the same push can be: what other lanes append between
// two devices of one push, with room for a lane that did not run for a while.
const doubtSpan = 1 << 14

// doubt says which messages are in doubt: those with from < seq < start. Set by recovery, constant afterwards.
type doubt struct {
	from  uint64
	start uint64 // the first Seq of this run
}

// doubtAfter is what is in doubt when newest is the highest Seq that recovery found.
func doubtAfter(newest, start uint64) doubt {
	return doubt{from: newest - min(newest, doubtSpan), start: start}
}

// missing appends the queues that a repeat of a known message id still has to go to: those of the push's devices that have no copy,
// when the id is in doubt. Called with the lock held.
func (l *Local) missing(dst []delivery.QueueID, user, device []byte, u uint32, mid uint64, nowMs int64) []delivery.QueueID {
	have, ok := l.copies(u, mid, nowMs)
	if !ok {
		return dst
	}
	all, r := l.route(nil, user, device, nowMs)
	if r != codec.ResultAccepted {
		return dst
	}
	for _, q := range all {
		// A default queue has nothing to miss: who is asked for is a device that was known when the message was accepted.
		if d := l.reg.queues[q].device; d != 0 && !slices.Contains(have, d) {
			dst = append(dst, q)
		}
	}
	return dst
}

// copies returns the devices that have or had the message, and whether there may be others that should.
func (l *Local) copies(user uint32, mid uint64, nowMs int64) (devices []uint32, incomplete bool) {
	recent, settled := false, false
	found := func(seq uint64, device uint32, over bool) {
		devices = append(devices, device)
		recent = recent || seq > l.doubt.from
		// A copy of this run: an earlier repeat has completed it. What waited for a first device had no others to miss.
		settled = settled || seq >= l.doubt.start || device == 0 || over
	}
	h := home(mid, user)
	l.index.each(h, func(slot uint32) bool {
		if e := l.slab.at(slot); e.mid == mid && l.reg.queues[e.queue].user == user {
			found(e.seq, l.reg.queues[e.queue].device, false)
		}
		return false
	})
	sinceMs := nowMs - l.cfg.DedupWindow.Milliseconds()
	l.ended.index.each(h, func(slot uint32) bool {
		if e := l.ended.at(slot - 1); e.mid == mid && e.user == user && e.endedMs > sinceMs {
			// Cancelled or expired for one device is over for all.
			found(e.seq, e.device, e.status == delivery.StatusCancelled || e.status == delivery.StatusExpired)
		}
		return false
	})
	return devices, recent && !settled
}
