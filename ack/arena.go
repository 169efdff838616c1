package ack

const (
	classSmallest = 4  // words of a block of class 0; each class doubles
	classes       = 12 // a block of the last class is a whole chunk
	wordsPerChunk = classSmallest << (classes - 1)

	chunksKeptIdle = 4 // 256 KiB
)

// arena gives out the memory of a shard's number lists in blocks of powers of two words, without pointers. Two halves that are free
// become the whole again (a buddy system): a thousand sessions that grow from 4 to 64 numbers must not leave the small blocks
// behind as waste that no larger list can use.
type arena struct {
	chunks []*[wordsPerChunk]uint64
	marks  []*[wordsPerChunk / classSmallest]uint8 // at the first word of a free block: its class, plus 1
	free   [classes]uint32                         // first free block of a class, plus 1; linked both ways through their first words
	used   int                                     // blocks given out

	// A few free blocks of class 0, not joined: a session that sends one message at a time would split and join a whole chunk
	// for each.
	spare  [16]uint32
	spares int
}

// words is the memory of a block.
func (a *arena) words(block uint32, class uint8) []uint64 {
	at := block % wordsPerChunk
	return a.chunks[block/wordsPerChunk][at : at+classSmallest<<class]
}

// take gives out a block. Its content is undefined.
func (a *arena) take(class uint8) uint32 {
	a.used++
	if class == 0 && a.spares > 0 {
		a.spares--
		return a.spare[a.spares]
	}
	from := class
	for from < classes && a.free[from] == 0 {
		from++
	}
	var block uint32
	if from == classes {
		from--
		block = uint32(len(a.chunks) * wordsPerChunk)
		a.chunks = append(a.chunks, new([wordsPerChunk]uint64))
		a.marks = append(a.marks, new([wordsPerChunk / classSmallest]uint8))
	} else {
		block = a.free[from] - 1
		a.unlink(block, from)
	}
	for from > class {
		from--
		a.link(block+classSmallest<<from, from)
	}
	return block
}

// give takes a block back.
func (a *arena) give(block uint32, class uint8) {
	a.used--
	if a.used == 0 && len(a.chunks) > chunksKeptIdle {
		a.reset()
		return
	}
	if class == 0 && a.spares < len(a.spare) {
		a.spare[a.spares] = block
		a.spares++
		return
	}
	for class < classes-1 {
		buddy := block ^ classSmallest<<class
		if *a.mark(buddy) != class+1 {
			break
		}
		a.unlink(buddy, class)
		block &= buddy
		class++
	}
	a.link(block, class)
}

// reset lets go of the memory of a past peak when no block is in use.
func (a *arena) reset() {
	clear(a.chunks[chunksKeptIdle:])
	clear(a.marks[chunksKeptIdle:])
	a.chunks, a.marks = a.chunks[:chunksKeptIdle], a.marks[:chunksKeptIdle]
	a.free, a.spares = [classes]uint32{}, 0
	for c := range a.chunks {
		clear(a.marks[c][:])
		a.link(uint32(c*wordsPerChunk), classes-1)
	}
}

func (a *arena) mark(block uint32) *uint8 {
	return &a.marks[block/wordsPerChunk][block%wordsPerChunk/classSmallest]
}

// first is the first word of a free block: the next one's place plus 1 in the upper half, the one's before in the lower.
func (a *arena) first(block uint32) *uint64 {
	return &a.chunks[block/wordsPerChunk][block%wordsPerChunk]
}

func (a *arena) link(block uint32, class uint8) {
	next := a.free[class]
	*a.first(block) = uint64(next) << 32
	if next != 0 {
		p := a.first(next - 1)
		*p = *p&^(1<<32-1) | uint64(block+1)
	}
	a.free[class] = block + 1
	*a.mark(block) = class + 1
}

func (a *arena) unlink(block uint32, class uint8) {
	if *a.mark(block) != class+1 {
		panic("ack: a block is on the free list of another class")
	}
	w := *a.first(block)
	next, before := uint32(w>>32), uint32(w)
	if before != 0 {
		p := a.first(before - 1)
		*p = *p&(1<<32-1) | uint64(next)<<32
	} else {
		a.free[class] = next
	}
	if next != 0 {
		p := a.first(next - 1)
		*p = *p&^(1<<32-1) | uint64(before)
	}
	*a.mark(block) = 0
}

// check panics when free blocks, spare ones and those in use do not add up to all there is.
func (a *arena) check(wordsUsed int) {
	words := wordsUsed + a.spares*classSmallest
	for class := range uint8(classes) {
		for next := a.free[class]; next != 0; next = uint32(*a.first(next - 1) >> 32) {
			if *a.mark(next - 1) != class+1 {
				panic("ack: a free block is not marked as one of its class")
			}
			if words += classSmallest << class; words > len(a.chunks)*wordsPerChunk {
				panic("ack: more number lists and free blocks than memory")
			}
		}
	}
	if words != len(a.chunks)*wordsPerChunk {
		panic("ack: a block of a number list was lost")
	}
}
