package client

import (
	"hash/maphash"

	"holdfast/codec"
)

// dedupKey stands for a message id: 128 bits, so that two ids never meet in practice, and half the size of most ids.
type dedupKey struct{ a, b uint64 }

// dedup remembers the last ids that were settled, in a ring, and finds them through an open-addressing table of ring
// positions. Both grow with use, from nothing, so that an idle client costs nothing. It is not safe for concurrent use.
type dedup struct {
	seedA, seedB maphash.Seed
	max          int
	ring         []dedupEntry
	next         int      // where the ring is written when it is full
	table        []uint32 // ring position + 1; 0: free; a power of two, at most half full
}

type dedupEntry struct {
	key   dedupKey
	level codec.AckLevel // what a further copy is answered with
}

func newDedup(size int) dedup {
	return dedup{seedA: maphash.MakeSeed(), seedB: maphash.MakeSeed(), max: max(size, 0)}
}

// key hashes an id. The seeds are this client's own: nobody outside can make two ids meet.
func (d *dedup) key(id []byte) dedupKey {
	return dedupKey{maphash.Bytes(d.seedA, id), maphash.Bytes(d.seedB, id)}
}

// get returns the level of an id that is remembered.
func (d *dedup) get(k dedupKey) (codec.AckLevel, bool) {
	if i, ok := d.find(k); ok {
		return d.ring[d.table[i]-1].level, true
	}
	return 0, false
}

// put remembers an id, or raises its level. The oldest gives way when the ring is full.
func (d *dedup) put(k dedupKey, level codec.AckLevel) {
	if d.max == 0 {
		return
	}
	if i, ok := d.find(k); ok {
		e := &d.ring[d.table[i]-1]
		e.level = max(e.level, level)
		return
	}
	if len(d.ring) < d.max {
		if 2*(len(d.ring)+1) > len(d.table) {
			d.grow()
		}
		d.ring = append(d.ring, dedupEntry{k, level})
		d.place(uint32(len(d.ring)))
		return
	}
	at := d.next
	d.next = (d.next + 1) % d.max
	d.remove(d.ring[at].key)
	d.ring[at] = dedupEntry{k, level}
	d.place(uint32(at) + 1)
}

// find returns the table slot of a key.
func (d *dedup) find(k dedupKey) (slot int, ok bool) {
	if len(d.table) == 0 {
		return 0, false
	}
	mask := len(d.table) - 1
	for i := int(k.a) & mask; d.table[i] != 0; i = (i + 1) & mask {
		if d.ring[d.table[i]-1].key == k {
			return i, true
		}
	}
	return 0, false
}

func (d *dedup) place(position uint32) {
	mask := len(d.table) - 1
	i := int(d.ring[position-1].key.a) & mask
	for d.table[i] != 0 {
		i = (i + 1) & mask
	}
	d.table[i] = position
}

// remove takes a key out of the table and closes the hole by moving later members of its run back; without
// tombstones the table never degrades.
func (d *dedup) remove(k dedupKey) {
	hole, ok := d.find(k)
	if !ok {
		panic("dedup: ring and table disagree")
	}
	mask := len(d.table) - 1
	for i := (hole + 1) & mask; d.table[i] != 0; i = (i + 1) & mask {
		home := int(d.ring[d.table[i]-1].key.a) & mask
		if (i-home)&mask >= (i-hole)&mask {
			d.table[hole] = d.table[i]
			hole = i
		}
	}
	d.table[hole] = 0
}

func (d *dedup) grow() {
	d.table = make([]uint32, max(2*len(d.table), 32))
	for i := range d.ring {
		d.place(uint32(i) + 1)
	}
}
