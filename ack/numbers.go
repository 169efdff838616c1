package ack

// The number list of a session maps request numbers to entry slots. It is a ring sorted by number, one word a number:
//
//	number 42 bits | slot 22 bits     slot all ones: a hole, the entry has gone
//
// Why a sorted list with holes and not an array indexed by number: a single message that is never acknowledged would force
// such an array to span every number given out since, or need a second structure for stragglers. Here holes at both ends are
// cut at once and holes in the middle when the ring is full, so the size follows the live entries only, whatever their numbers
// are. Numbers rise by one, so the place of number n is at most n minus the first number: usually exactly that, and
// otherwise a binary search below it.

const (
	slotBits  = 22
	blockNone = ^uint32(0) // of a session without a list
)

func word(number uint64, slot uint32) uint64 { return number<<slotBits | uint64(slot) }
func numberOf(w uint64) uint64               { return w >> slotBits }
func slotOf(w uint64) uint32                 { return uint32(w & slotNone) }

// at is the word at place k of the list of x.
func (a *arena) at(x *session, k int) *uint64 {
	at := uint32(int(x.head)+k) & (classSmallest<<x.class - 1)
	return &a.chunks[x.block/wordsPerChunk][x.block%wordsPerChunk+at]
}

// place is the first place whose number is at least number; the length of the list when there is none.
func (a *arena) place(x *session, number uint64) int {
	if x.length == 0 {
		return 0
	}
	first := numberOf(*a.at(x, 0))
	if number <= first {
		return 0
	}
	high := int(min(number-first, uint64(x.length))) // numbers rise by at least one a place: it cannot be above
	if high < int(x.length) && numberOf(*a.at(x, high)) == number {
		return high
	}
	low := 1
	for low < high {
		if middle := (low + high) / 2; numberOf(*a.at(x, middle)) < number {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// find is the place and slot of number.
func (a *arena) find(x *session, number uint64) (k int, slot uint32, ok bool) {
	if number > numberLast {
		return 0, 0, false
	}
	if k = a.place(x, number); k == int(x.length) {
		return 0, 0, false
	}
	w := *a.at(x, k)
	return k, slotOf(w), numberOf(w) == number && slotOf(w) != slotNone
}

// push appends a number, which is above all in the list.
func (a *arena) push(x *session, number uint64, slot uint32) {
	switch {
	case x.block == blockNone:
		x.class, x.head, x.length = 0, 0, 0
		x.block = a.take(0)
	case int(x.length) == classSmallest<<x.class:
		a.rebuild(x)
	}
	if x.length > 0 && numberOf(*a.at(x, int(x.length)-1)) >= number {
		panic("ack: request numbers of a session do not rise")
	}
	x.length++
	*a.at(x, int(x.length)-1) = word(number, slot)
}

// rebuild drops the holes of a full list into the smallest block that leaves a quarter free, so that the next rebuild is
// at least a quarter of a block away and the cost per push stays constant.
func (a *arena) rebuild(x *session) {
	live := 0
	for k := range int(x.length) {
		if slotOf(*a.at(x, k)) != slotNone {
			live++
		}
	}
	class := uint8(0)
	for live > classSmallest<<class*3/4 {
		class++
	}
	if class == classes {
		panic("ack: more live entries in a session than windows and parking allow")
	}
	block := a.take(class)
	words := a.words(block, class)
	n := 0
	for k := range int(x.length) {
		if w := *a.at(x, k); slotOf(w) != slotNone {
			words[n] = w
			n++
		}
	}
	a.give(x.block, x.class)
	x.block, x.class, x.head, x.length = block, class, 0, uint16(n)
}

// cut makes the places from first up to end holes, and cuts the holes at both ends. The list gives its block back when it is empty.
func (a *arena) cut(x *session, first, end int) {
	for k := first; k < end; k++ {
		*a.at(x, k) |= slotNone
	}
	if end == int(x.length) {
		for x.length > 0 && slotOf(*a.at(x, int(x.length)-1)) == slotNone {
			x.length--
		}
	}
	if first == 0 {
		for x.length > 0 && slotOf(*a.at(x, 0)) == slotNone {
			x.head = uint16((int(x.head) + 1) & (classSmallest<<x.class - 1))
			x.length--
		}
	}
	if x.length == 0 {
		a.drop(x)
	}
}

// drop empties the list.
func (a *arena) drop(x *session) {
	if x.block != blockNone {
		a.give(x.block, x.class)
	}
	x.block, x.class, x.head, x.length = blockNone, 0, 0, 0
}
