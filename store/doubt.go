package store

import "holdfast/delivery"

// A push for several devices is several records, and a crash may leave some of them on the disk and not the others: a batch was cut
// between them, or the kernel stopped in the middle of a write. Nobody was answered, so the publisher repeats the push, and its id is
// known. To call that a duplicate would lose the message for the devices whose record is missing. So what was accepted shortly before
// a start is in doubt: a repeat of it goes to the devices that have no copy.

// doubtSpan is how far behind the newest recovered record another record of the same push can be: what other lanes append between
// two devices of one push, with room for a lane that was not running for a while.
const doubtSpan = 1 << 14

// missing keeps those of targets that have no copy of a known message id; none when the id is not in doubt. Called with the lock held.
func (l *Local) missing(targets []delivery.QueueID, user uint32, mid uint64, nowMs int64) []delivery.QueueID {
	doubt := false
	certain := func(seq uint64) bool { // written in this run, for a repeat may have completed it
		doubt = doubt || seq > l.doubtSeq
		return seq >= l.startSeq
	}
	has := func(device uint32) {
		for i, q := range targets {
			if l.reg.queues[q].device == device {
				targets = append(targets[:i], targets[i+1:]...)
				return
			}
		}
	}
	settled := false
	h := home(mid, user)
	l.index.each(h, func(slot uint32) bool {
		if e := l.slab.at(slot); e.mid == mid && l.reg.queues[e.queue].user == user {
			device := l.reg.queues[e.queue].device
			settled = settled || certain(e.seq) || device == 0
			has(device)
		}
		return false
	})
	sinceMs := nowMs - l.cfg.DedupWindow.Milliseconds()
	l.ended.index.each(h, func(slot uint32) bool {
		if e := l.ended.at(slot - 1); e.mid == mid && e.user == user && e.endedMs > sinceMs {
			// What was cancelled or expired for one device is over for all; what waited for a first device had no others.
			over := e.status == delivery.StatusCancelled || e.status == delivery.StatusExpired || e.device == 0
			settled = settled || certain(e.seq) || over
			has(e.device)
		}
		return false
	})
	if settled || !doubt {
		return targets[:0]
	}
	return targets
}
