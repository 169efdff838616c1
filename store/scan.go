package store

import (
	"encoding/binary"
	"fmt"
	"os"
)

const scanWindowBytes = 4 << 20

// scanner walks the frames of one file in order. After damage it goes on at the next place where a valid frame stands.
type scanner struct {
	f    *os.File
	sums checksums
	file uint64 // number the checksums are made with
	size int64
	off  int64 // of the next frame

	window   []byte
	windowAt int64

	damagedAt int64 // where the damage before the last frame began, -1: none
}

func newScanner(f *os.File, sums checksums, file uint64, size int64, window []byte) *scanner {
	return &scanner{f: f, sums: sums, file: file, size: size, window: window[:0], damagedAt: -1}
}

// next returns the next valid frame and its offset, borrowed until the next call; ok is false at the end of the file.
// damagedAt then says where the bytes that are no frame began. err is an I/O error.
func (s *scanner) next() (frame []byte, off int64, ok bool, err error) {
	s.damagedAt = -1
	for s.off+frameHeadBytes <= s.size {
		head, err := s.at(s.off, frameHeadBytes)
		if err != nil {
			return nil, 0, false, err
		}
		n := int(binary.LittleEndian.Uint32(head[4:]))
		if n >= frameHeadBytes && n <= frameBytesMax && s.off+int64(padded(n)) <= s.size {
			frame, err = s.at(s.off, n)
			if err != nil {
				return nil, 0, false, err
			}
			if s.sums.valid(s.file, s.off, frame) {
				off = s.off
				s.off += int64(padded(n))
				return frame, off, true, nil
			}
		}
		if s.damagedAt < 0 {
			s.damagedAt = s.off
		}
		s.off += frameAlign
	}
	if s.damagedAt < 0 && s.off < s.size {
		s.damagedAt = s.off
	}
	return nil, 0, false, nil
}

// at returns n bytes of the file from off on, reading ahead.
func (s *scanner) at(off int64, n int) ([]byte, error) {
	if from := off - s.windowAt; from >= 0 && from+int64(n) <= int64(len(s.window)) {
		return s.window[from : from+int64(n)], nil
	}
	if cap(s.window) < scanWindowBytes {
		s.window = make([]byte, 0, scanWindowBytes)
	}
	want := min(int64(cap(s.window)), s.size-off)
	s.window, s.windowAt = s.window[:want], off
	if _, err := s.f.ReadAt(s.window, off); err != nil {
		return nil, fmt.Errorf("store: reading %s at %d: %w", s.f.Name(), off, err)
	}
	return s.window[:n], nil
}
