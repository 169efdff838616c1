package store

import "sync"

const (
	cacheBlockBytes = 64 << 10
	cacheLoadPrice  = 8    // single reads that cost as much as the read of a block
	cacheLoadsFree  = 64   // blocks a second that may be read on trust, before they bring a hit
	cacheKeepTicks  = 3    // seconds that a block stays without a hit
	cacheMissed     = 1024 // blocks whose first miss is remembered
)

// readCache keeps blocks of the log while several readers are in them. What many users are sent in turn lies mixed in the log, so when
// they come back together each block holds messages for all of them: one read of it instead of a system call for each message.
//
// Only blocks that are written to their end are taken. Such bytes never change, and no two segments have the same number, so nothing
// in here is ever out of date: what would have to be invalidated is not let in.
//
// One user with a small backlog shall not pay for a block per message: the first miss is only remembered, the second one soon after
// reads the block. Users too many for the cache shall not pay either, whose blocks go before the next reader comes: each hit earns a
// part of the next block, and without hits no more than a few blocks a second are read.
type readCache struct {
	blockBytes int64 // static after construction
	most       int   // blocks; 0: the cache is off

	mu     sync.Mutex // a leaf; not held while a block is read
	byKey  map[blockKey]*cacheBlock
	blocks []*cacheBlock
	hand   int // of the clock that finds the block to give up
	missed []missedBlock
	tick   uint32 // seconds
	busyAt uint32 // tick of the last miss
	credit int    // single reads saved and not spent yet
	count  cacheCounts
}

type cacheCounts struct {
	hits  int64 // reads that needed no system call
	loads int64 // blocks read
}

// blockKey names the block number at of the segment num.
type blockKey struct {
	num uint64
	at  int64
}

// cacheBlock is one block. While it is loading, its bytes belong to the reader that loads it.
type cacheBlock struct {
	key     blockKey
	data    []byte
	tick    uint32 // of the last hit
	used    bool   // since the hand passed
	loading bool
}

type missedBlock struct {
	key  blockKey
	tick uint32
}

// newReadCache makes a cache of at most bytes. It takes memory only when it is used.
func newReadCache(bytes, blockBytes int64) *readCache {
	return &readCache{blockBytes: blockBytes, most: int(bytes / blockBytes), credit: cacheLoadsFree * cacheLoadPrice}
}

// spanMax is the largest read that looks here: it ends in the block after its first one at the latest, and a larger one is worth its
// system call.
func (c *readCache) spanMax() int { return int(c.blockBytes) / 4 }

// whole reports whether bytes up to end lie in blocks that are written to their end.
func (c *readCache) whole(end, written int64) bool { return end <= written-written%c.blockBytes }

// take fills dst from the bytes at off of a segment, at most spanMax of them, all in whole blocks. Where a block is missing that should be
// here, it returns that one: the caller reads its bytes, calls loaded, and tries again. ok false and nil: read from the disk.
func (c *readCache) take(dst []byte, num uint64, off int64) (load *cacheBlock, ok bool) {
	first, last := off/c.blockBytes, (off+int64(len(dst))-1)/c.blockBytes
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := first; at <= last; at++ {
		key := blockKey{num, at}
		b := c.byKey[key]
		if b == nil {
			return c.miss(key), false
		}
		if b.loading { // nobody waits for another's read
			return nil, false
		}
		b.used, b.tick = true, c.tick
		from := max(off, at*c.blockBytes)
		copy(dst[from-off:], b.data[from-at*c.blockBytes:])
	}
	c.count.hits++
	c.credit = min(c.credit+1, cacheLoadsFree*cacheLoadPrice)
	return nil, true
}

// miss decides whether a block that is not here is to be loaded. Called with the lock held.
func (c *readCache) miss(key blockKey) *cacheBlock {
	if c.missed == nil {
		c.missed = make([]missedBlock, cacheMissed)
		c.byKey = make(map[blockKey]*cacheBlock)
	}
	c.busyAt = c.tick
	m := &c.missed[mix(key.num+uint64(key.at)<<32)%cacheMissed]
	if m.key != key || c.tick-m.tick > 1 {
		*m = missedBlock{key, c.tick}
		return nil
	}
	if c.credit < cacheLoadPrice {
		return nil
	}
	b := c.room()
	if b == nil {
		return nil
	}
	c.credit -= cacheLoadPrice
	*b = cacheBlock{key: key, data: b.data, tick: c.tick, loading: true}
	c.byKey[key] = b
	return b
}

// room returns a block to fill: a new one, or one that had no hit since the hand passed it; nil when all are being loaded.
func (c *readCache) room() *cacheBlock {
	if len(c.blocks) < c.most {
		b := &cacheBlock{data: make([]byte, c.blockBytes)}
		c.blocks = append(c.blocks, b)
		return b
	}
	for range 2 * len(c.blocks) {
		c.hand = (c.hand + 1) % len(c.blocks)
		b := c.blocks[c.hand]
		if b.loading {
			continue
		}
		if !b.used {
			delete(c.byKey, b.key)
			return b
		}
		b.used = false
	}
	return nil
}

// loaded takes back a block that take returned; ok says whether its bytes were read.
func (c *readCache) loaded(b *cacheBlock, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.loading = false
	if ok {
		c.count.loads++
		return
	}
	c.dropIf(func(old *cacheBlock) bool { return old == b })
}

// drop forgets a segment that was removed. A reader that is still in it may bring a block back, which then goes when it is idle.
func (c *readCache) drop(num uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropIf(func(b *cacheBlock) bool { return b.key.num == num })
}

// rest is called every second: it gives back the memory of what had no hit for some.
func (c *readCache) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick++
	c.credit = cacheLoadsFree * cacheLoadPrice
	c.dropIf(func(b *cacheBlock) bool { return c.tick-b.tick > cacheKeepTicks })
	if len(c.blocks) == 0 && c.tick-c.busyAt > cacheKeepTicks {
		c.missed, c.byKey, c.blocks = nil, nil, nil
	}
}

// dropIf gives up the blocks that f names, but for those being loaded. Called with the lock held.
func (c *readCache) dropIf(f func(b *cacheBlock) bool) {
	kept := c.blocks[:0]
	for _, b := range c.blocks {
		if !b.loading && f(b) {
			delete(c.byKey, b.key)
		} else {
			kept = append(kept, b)
		}
	}
	clear(c.blocks[len(kept):])
	c.blocks, c.hand = kept, 0
}

// stats returns the counts, and the bytes held now.
func (c *readCache) stats() (n cacheCounts, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count, int64(len(c.blocks)) * c.blockBytes
}
