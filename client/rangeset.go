package client

import (
	"slices"

	"holdfast/codec"
)

// rangeSet is a set of request numbers as rising, non-touching ranges. Confirmations mostly come in order, so adding
// to or just behind the last range is the path that counts.
type rangeSet struct {
	ranges []codec.Range
}

// add puts n in; false when it was in already.
func (s *rangeSet) add(n uint64) bool {
	if last := len(s.ranges) - 1; last >= 0 {
		r := &s.ranges[last]
		switch {
		case n == r.From+r.Count:
			r.Count++
			return true
		case n >= r.From && n < r.From+r.Count:
			return false
		case n < r.From:
			return s.insert(n)
		}
	}
	s.ranges = append(s.ranges, codec.Range{From: n, Count: 1})
	return true
}

// insert is add for a number below the last range's start.
func (s *rangeSet) insert(n uint64) bool {
	i, _ := slices.BinarySearchFunc(s.ranges, n, func(r codec.Range, n uint64) int {
		if r.From+r.Count < n {
			return -1
		}
		return 1
	})
	r := &s.ranges[i] // the first range whose end reaches n: there is one, n is below the last range's start
	switch {
	case n >= r.From && n < r.From+r.Count:
		return false
	case n == r.From+r.Count:
		r.Count++
	case n+1 == r.From:
		r.From, r.Count = n, r.Count+1
		return true
	default:
		s.ranges = slices.Insert(s.ranges, i, codec.Range{From: n, Count: 1})
		return true
	}
	if i+1 < len(s.ranges) && r.From+r.Count == s.ranges[i+1].From {
		r.Count += s.ranges[i+1].Count
		s.ranges = slices.Delete(s.ranges, i+1, i+2)
	}
	return true
}

// floor is the highest n for which all of 1..n are in; 0 for none.
func (s *rangeSet) floor() uint64 {
	if len(s.ranges) == 0 || s.ranges[0].From != 1 {
		return 0
	}
	return s.ranges[0].Count
}

func (s *rangeSet) len() int { return len(s.ranges) }

func (s *rangeSet) reset() { s.ranges = s.ranges[:0] }

// addRange puts all of r in. The common range continues the last one.
func (s *rangeSet) addRange(r codec.Range) {
	if last := len(s.ranges) - 1; last < 0 || r.From > s.ranges[last].From+s.ranges[last].Count {
		s.ranges = append(s.ranges, r)
		return
	} else if l := &s.ranges[last]; r.From == l.From+l.Count {
		l.Count += r.Count
		return
	}
	for n := range r.Count {
		s.add(r.From + n)
	}
}
