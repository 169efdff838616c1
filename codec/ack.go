package codec

import "encoding/binary"

// ACK is the frame a gateway reads most: a one-number ACK is at most 6 bytes up to number 2^21-1, and an up-to ACK of the same size
// confirms any number of messages.
//
//	| len | 0x11 | flags: kind, level, has client time | by kind: |
//	  AckOne        | number |
//	  AckRange      | from | count |
//	  AckUpTo       | number |
//	  AckList       | n | n x ( gap | count ) |   gap: numbers between the end of the range before (0 for the first) and this one
//	  AckMessageID  | message id |
//	with AckHasClientTime: | client time ms |

// AppendAck appends an ACK frame. AckList can only be appended from an Ack that was decoded; build one with AppendAckList.
func AppendAck(dst []byte, x *Ack) []byte {
	dst, s := begin(dst, TypeAck, ackFlags(x.Kind, x.Level, x.ClientTimeMs), len(x.MessageID)+len(x.list)+16)
	switch x.Kind {
	case AckOne, AckUpTo:
		dst = binary.AppendUvarint(dst, x.From)
	case AckRange:
		dst = binary.AppendUvarint(dst, x.From)
		dst = binary.AppendUvarint(dst, x.Count)
	case AckList:
		dst = binary.AppendUvarint(dst, x.Count)
		dst = append(dst, x.list...)
	case AckMessageID:
		dst = appendBytes(dst, x.MessageID)
	default:
		panic("codec: ack of unknown kind")
	}
	if x.ClientTimeMs != 0 {
		dst = binary.AppendUvarint(dst, x.ClientTimeMs)
	}
	return s.end(dst)
}

func ackFlags(kind AckKind, level AckLevel, clientTimeMs uint64) uint8 {
	flags := uint8(kind) | uint8(level)<<AckLevelShift
	if clientTimeMs != 0 {
		flags |= AckHasClientTime
	}
	return flags
}

// AppendAckOne appends an ACK of one request number.
func AppendAckOne(dst []byte, number uint64, level AckLevel) []byte {
	return AppendAck(dst, &Ack{Kind: AckOne, Level: level, From: number})
}

// AppendAckRange appends an ACK of count (1 to AckCountMax) request numbers from from on.
func AppendAckRange(dst []byte, from, count uint64, level AckLevel) []byte {
	return AppendAck(dst, &Ack{Kind: AckRange, Level: level, From: from, Count: count})
}

// AppendAckUpTo appends an ACK of every request number of this session up to and including number.
func AppendAckUpTo(dst []byte, number uint64, level AckLevel) []byte {
	return AppendAck(dst, &Ack{Kind: AckUpTo, Level: level, From: number})
}

// AppendAckMessageID appends an ACK of a message of an earlier session.
func AppendAckMessageID(dst, id []byte, level AckLevel) []byte {
	return AppendAck(dst, &Ack{Kind: AckMessageID, Level: level, MessageID: id})
}

// AppendAckList appends an ACK of 1 to AckRangesMax ranges, which must rise and not overlap.
func AppendAckList(dst []byte, ranges []Range, level AckLevel) []byte {
	if len(ranges) == 0 || len(ranges) > AckRangesMax {
		panic("codec: ack list without ranges or with too many")
	}
	dst, s := begin(dst, TypeAck, ackFlags(AckList, level, 0), 4*len(ranges))
	dst = binary.AppendUvarint(dst, uint64(len(ranges)))
	end := uint64(0)
	for _, r := range ranges {
		if r.From < end {
			panic("codec: ack list does not rise")
		}
		dst = binary.AppendUvarint(dst, r.From-end)
		dst = binary.AppendUvarint(dst, r.Count)
		end = r.From + r.Count
	}
	return s.end(dst)
}

// DecodeAck decodes an ACK frame. Every range is checked here, so that none of a bad ACK takes effect: it names at least number 1,
// covers 1 to AckCountMax numbers and does not run over the end of 64 bits. [P-ACK-1] [P-ACK-3] [P-STATE-2]
func DecodeAck(f Frame, x *Ack) error {
	*x = Ack{Kind: AckKind(f.Flags & AckKindMask), Level: AckLevel(f.Flags & AckLevelMask >> AckLevelShift)}
	r := open(f, TypeAck, AckKindMask|AckLevelMask|AckHasClientTime)
	if x.Level > LevelRead {
		r.fail(errFlags)
	}
	switch x.Kind {
	case AckOne:
		x.From, x.Count = r.number(), 1
	case AckUpTo:
		x.From = r.number()
	case AckRange:
		one := r.ackRange(0)
		x.From, x.Count = one.From, one.Count
	case AckList:
		x.Count, x.list = r.ackList()
	case AckMessageID:
		x.MessageID = r.name(MessageIDBytesMax, errMessageID)
	default:
		r.fail(errFlags)
	}
	if f.Flags&AckHasClientTime != 0 {
		x.ClientTimeMs = r.uvarint()
	}
	return r.done()
}

// ackRange reads one range (P-ACK-3) whose first field counts from end, the number behind the range before it.
func (r *reader) ackRange(end uint64) Range {
	gap := r.uvarint()
	count := r.uvarint()
	from := end + gap
	switch {
	case r.err != nil:
	case from == 0 || from < gap:
		r.fail(errNumber)
	case count == 0 || count > AckCountMax || from+count < from:
		r.fail(errAckCount)
	}
	return Range{From: from, Count: count}
}

// ackList checks the ranges of an AckList and returns them still encoded.
func (r *reader) ackList() (n uint64, list []byte) {
	n = r.uvarint()
	if r.err == nil && (n == 0 || n > AckRangesMax) {
		r.fail(errAckRanges)
	}
	list = r.b
	end := uint64(0)
	for i := uint64(0); i < n && r.err == nil; i++ {
		one := r.ackRange(end)
		end = one.From + one.Count
	}
	return n, list[:len(list)-len(r.b)]
}

// Ranges calls yield for every range of request numbers, rising, until it returns false: one for AckOne and AckRange, Count for
// AckList, none for AckUpTo (see From) and AckMessageID. It does not allocate and can be repeated: for r := range x.Ranges.
func (x *Ack) Ranges(yield func(Range) bool) {
	switch x.Kind {
	case AckOne:
		yield(Range{From: x.From, Count: 1})
	case AckRange:
		yield(Range{From: x.From, Count: x.Count})
	case AckList:
		r := reader{b: x.list}
		end := uint64(0)
		for range x.Count {
			one := r.ackRange(end)
			if r.err != nil || !yield(one) {
				return
			}
			end = one.From + one.Count
		}
	}
}
