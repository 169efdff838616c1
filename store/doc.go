// Package store holds what must outlive a connection or the process. Local is the embedded engine of solo mode: a segment log with
// group commit, an index in memory without pointers, a registry of devices and a journal of what ended.
//
// # Life of a message
//
//	Append ──► open batch ──cut──► flushing batch ──write, sync──► segment ──► … ──► End
//	             │ readable at once     │ readable                  │ copied forward, so that old segments can go
//	             │ End: never written   │ End: answered at once     └ publisher answered: accepted
//
// A publisher is answered when its message is durable or has ended, whichever is first; one that dies waits for its dead letter to be
// durable, for that is what it leaves behind. What a failed write did not store was never accepted: it leaves the index again.
//
// Ends, attempts and sightings of devices are lazy: they ride with the next batch, at most Config.LazyDelay later. A crash forgets the
// last of them, which costs a copy under the same message id. Flush waits for them.
//
// # Files
//
//	FORMAT           text: version, seed of all checksums and hashes, number of starts, "clean" after a good end
//	LOCK             held while a process has the directory
//	NNNNNNNN.log     the log: segments in a row without a gap; the last one is written to
//	devices          the registry: the last frame of a device counts; rewritten when most of it does not
//	ended-NNNNNNNN   journal of ends: the memory for duplicates and for look-ups; a new file at each start
//
// Every file but the first two is a row of frames. Integers are little-endian; a frame is padded to 8 bytes, which its length does not
// count:
//
//	0        4        8      9
//	├────────┼────────┼──────┼─ ─ ─
//	│ crc32c │ length │ type │ body       crc over all behind itself
//	└────────┴────────┴──────┴─ ─ ─
//
// The checksum starts from a value made of the seed, the file's number and the frame's place in it. A frame is therefore valid only
// where it was written: not inside a payload, not in a block that used to belong to another file. So a reader that meets damage may
// look for the next valid frame at every eighth byte.
//
// A message (types put and move; a move is a put copied forward, as it stood then):
//
//	9       10      11       12       13         14          15         17    25         33
//	├───────┼───────┼────────┼────────┼──────────┼───────────┼──────────┼─────┼──────────┼─────────┐
//	│ class │ flags │ reason │ user n │ device n │ message n │ attempts │ seq │ accepted │ expires │
//	└───────┴───────┴────────┴────────┴──────────┴───────────┴──────────┴─────┴──────────┴─────────┘
//	41
//	├──────┬────────┬────────────┬─────────┐   times are Unix milliseconds; expires of a dead letter is when it died;
//	│ user │ device │ message id │ command │   n are the lengths of the names
//	└──────┴────────┴────────────┴─────────┘
//
// Ends and notes are lists, whose items start at byte 16 of the frame:
//
//	0     8          16         18       19       20   24       0     8          10     11   16
//	├─────┼──────────┼──────────┼────────┼────────┼────┤        ├─────┼──────────┼──────┼────┤
//	│ seq │ ended ms │ attempts │ status │ reason │  0 │        │ seq │ attempts │ sent │  0 │
//	└─────┴──────────┴──────────┴────────┴────────┴────┘        └─────┴──────────┴──────┴────┘
//
// In the side files, one ended delivery and one device:
//
//	9       17    25         33      41      45         47       48       49      50         51       52         53
//	├───────┼─────┼──────────┼───────┼───────┼──────────┼────────┼────────┼───────┼──────────┼────────┼──────────┼──────┬────────┐
//	│ id #  │ seq │ accepted │ ended │ bytes │ attempts │ status │ reason │ level │ priority │ user n │ device n │ user │ device │
//	└───────┴─────┴──────────┴───────┴───────┴──────────┴────────┴────────┴───────┴──────────┴────────┴──────────┴──────┴────────┘
//	9       10       11         12      20
//	├───────┼────────┼──────────┼───────┼──────┬────────┐
//	│ flags │ user n │ device n │ seen  │ user │ device │
//	└───────┴────────┴──────────┴───────┴──────┴────────┘
//
// # Who runs what
//
// Callers work in memory, under one lock (Local.mu) that is never held across I/O. One goroutine of the package's own, the committer, does all
// writing: it cuts the open batch, writes and syncs it, copies forward, removes segments and keeps the side files. Readers pin a segment, let
// go of the lock and pread. Waiters are called without the lock.
//
// # When the disk fails
//
//   - No room (ENOSPC, EDQUOT): the batch is refused, messages are refused from then on, ends and reads go on, and the committer tries again
//     every Config.RetryDelay. A start on a full disk begins in this state.
//   - Any other write error, and any error of a sync: fail-stop. What the kernel did with the pages is unknown, so nothing is written any more,
//     see Local.Failed.
//   - A torn tail of the last segment was never answered: it is cut off. Damage anywhere else is reported and counted, and costs the records it
//     hit. A missing segment is an error at the start.
//   - What cannot be read stays: Next returns what stands before it, then the error. Bytes that are read and wrong, or no longer in the file,
//     end their message as dead (reason undecodable).
//
// # Not obvious
//
//   - Segments go from the head only, in order also on the disk: an end must never go before the put it ends, or the put would be back after
//     a restart.
//   - The upper bits of a Seq count the starts, so a Seq is never given twice although the last ones of a crashed run may be on no disk.
//   - A batch writes the journal of ended first: were it lost and the end not, a repeat would be taken for a new message.
//   - What was accepted just before a crash may be there for some devices of a push and not for others: see doubt.go.
//   - The default queue (device "") becomes the first device's own at its login: nothing moves, frames keep the empty name, and the device is
//     marked as its heir.
package store
