package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	segmentSuffix   = ".log"
	segmentSlotsMax = 1<<16 - 1
	fileHeadBytes   = 16 // the header frame every file starts with
)

// segment is one file of the log. Guarded by Local.mu; its bytes below size are read without it while pins > 0.
type segment struct {
	num       uint64
	slot      uint16
	f         *os.File
	path      string
	size      int64
	live      int   // entries whose frame is here, dead letters included
	liveBytes int64 // of their frames
	pins      int   // readers under way
	removed   bool  // unlinked; closed by the last reader
}

// segments is the log: a row of files, oldest first, the last one open for writing.
type segments struct {
	order []*segment
	slots []*segment // by slot; nil: free
	bytes int64      // of all files
}

func (s *segments) active() *segment { return s.order[len(s.order)-1] }

func (s *segments) add(g *segment) error {
	for i, old := range s.slots {
		if old == nil {
			g.slot = uint16(i)
			s.slots[i] = g
			s.order = append(s.order, g)
			s.bytes += g.size
			return nil
		}
	}
	if len(s.slots) >= segmentSlotsMax {
		return fmt.Errorf("store: more than %d segments", segmentSlotsMax)
	}
	g.slot = uint16(len(s.slots))
	s.slots = append(s.slots, g)
	s.order = append(s.order, g)
	s.bytes += g.size
	return nil
}

func segmentPath(dir string, num uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%08d%s", num, segmentSuffix))
}

// createSegment makes the next file of the log, durable in its directory. It is called without the lock.
func (l *Local) createSegment(num uint64) (*segment, error) {
	g := &segment{num: num, path: segmentPath(l.cfg.Dir, num)}
	f, head, err := l.createFile(g.path, num)
	if err != nil {
		return nil, err
	}
	g.f, g.size = f, int64(head)
	return g, nil
}

// createFile starts a file with its header frame and makes its name durable.
func (l *Local) createFile(path string, num uint64) (f *os.File, size int, err error) {
	f, err = l.cfg.files.create(path)
	if err != nil {
		return nil, 0, fmt.Errorf("store: creating %s: %w", path, err)
	}
	head := endFrame(append(beginFrame(nil, frameHeader), make([]byte, fileHeadBytes-frameHeadBytes)...), 0)
	l.sums.seal(num, 0, head)
	if err = writeAll(l.cfg.files, f, head, 0); err == nil {
		err = l.cfg.files.syncDir(l.cfg.Dir)
	}
	if err != nil {
		err = fmt.Errorf("store: starting %s: %w", path, err)
		return nil, 0, errors.Join(err, f.Close(), l.cfg.files.remove(path))
	}
	return f, len(head), nil
}

// writeAll writes b at off; a short write without an error is one for lack of room.
func writeAll(fl *files, f *os.File, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := fl.write(f, b, off)
		if err != nil {
			return err
		}
		if n <= 0 {
			return fmt.Errorf("write of %d bytes took none", len(b))
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// unpin lets go of a segment a reader was in.
func (l *Local) unpin(g *segment) {
	g.pins--
	if g.removed && g.pins == 0 {
		l.retire(g)
	}
}

// retire closes an unlinked segment and gives its slot back.
func (l *Local) retire(g *segment) {
	_ = g.f.Close() // read only by now; nothing to lose
	l.segs.slots[g.slot] = nil
}

// removeHeads takes segments away in which nothing lives, from the head only: an end must never go before the put it ends, or the
// put would be back after a restart. It is called by the committer without the lock.
func (l *Local) removeHeads() {
	for {
		l.mu.Lock()
		if len(l.segs.order) < 2 || l.segs.order[0].live > 0 {
			l.mu.Unlock()
			return
		}
		g := l.segs.order[0]
		l.mu.Unlock()
		// Nothing can come to live in a sealed segment again, so it may go without the lock.
		if err := l.cfg.files.remove(g.path); err != nil {
			l.cfg.Log.Warn("a finished segment cannot be removed", "file", g.path, "error", err)
			return
		}
		// In order also on the disk: a gap in the row would look like a lost file.
		if err := l.cfg.files.syncDir(l.cfg.Dir); err != nil {
			l.cfg.Log.Warn("the data directory cannot be synced", "error", err)
		}
		l.mu.Lock()
		l.segs.order = l.segs.order[1:]
		l.segs.bytes -= g.size
		g.removed = true
		l.count.segmentsRemoved++
		if g.pins == 0 {
			l.retire(g)
		}
		l.mu.Unlock()
		l.cache.drop(g.num)
	}
}
