// Package ack is the table of what was sent and is not yet confirmed.
//
// Its one promise: each entry is won exactly once. An ACK, an eviction, a Take or a decision after a timeout takes its effect
// under the lock of the entry's shard, and whoever comes second is told so and does nothing.
//
//	Add ──► in the window, timer armed ──► Ack, AckUpTo, Take, Evict: removed and handed to the caller
//	             │   ▲                              ▲
//	     Expire: │   │ Rearm                        │ a late ACK wins in every state
//	     timer   ▼   │                              │
//	        in the window, no timer ──► Park: outside the window, no timer ──► Unpark: in the window again
//
// A table has 64 shards by user hash. A shard is one lock over slabs without pointers (entries, sessions, number lists) and a
// timing wheel whose timers are the entries' slots, so that an entry and its timer change in one critical section and
// millions of entries cost the garbage collector nothing. Payloads are not here: an entry names its message by Ref.
//
// All times are monotonic milliseconds above 0 and come from the caller. Nothing here starts a goroutine or waits for
// anything but a shard's lock, and no lock is held across a call out of the package.
package ack
