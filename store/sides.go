package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Both files beside the log, devices and ended, may lose their tail in a power cut without harm: a login or a message brings
// a device back, and a lost mark means one more copy under the same id. They are synced once a second.

const (
	devicesName = "devices"
	devicesNum  = 1 << 62 // for the checksums

	endedPrefix    = "ended-"
	endedNum       = 1 << 61 // plus the file's number
	endedFileBytes = 32 << 20

	deviceHeir = 1 << 0
	deviceGone = 1 << 1
)

func appendDevice(dst []byte, user, device string, q *queue) []byte {
	start := len(dst)
	flags := byte(0)
	if q.heir {
		flags |= deviceHeir
	}
	if q.gone {
		flags |= deviceGone
	}
	dst = append(beginFrame(dst, frameDevice), flags, byte(len(user)), byte(len(device)))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(q.seenMs))
	dst = append(dst, user...)
	dst = append(dst, device...)
	return endFrame(dst, start)
}

func parseDevice(b []byte) (user, device []byte, flags byte, seenMs int64, ok bool) {
	const head = frameHeadBytes + 3 + 8
	if len(b) < head || b[8] != frameDevice || len(b) < head+int(b[10])+int(b[11]) {
		return nil, nil, 0, 0, false
	}
	n, m := int(b[10]), int(b[11])
	return b[head : head+n], b[head+n : head+n+m], b[9], int64(binary.LittleEndian.Uint64(b[12:])), true
}

// devicesFile is the registry on disk: the last frame of a device counts. The committer's own.
type devicesFile struct {
	f     *os.File
	path  string
	size  int64
	dirty bool
}

func (d *devicesFile) write(l *Local, frames []byte) error {
	if len(frames) == 0 {
		return nil
	}
	l.sums.seal(devicesNum, d.size, frames)
	if err := writeAll(l.cfg.files, d.f, frames, d.size); err != nil {
		return fmt.Errorf("store: writing %s: %w", d.path, err)
	}
	d.size += int64(len(frames))
	d.dirty = true
	return nil
}

// compact rewrites the file with what counts, when most of it does not.
func (d *devicesFile) compact(l *Local) error {
	const slack, deviceBytes = 1 << 20, 64
	l.mu.Lock()
	used, n := l.reg.used, uint32(len(l.reg.queues))
	l.mu.Unlock()
	if d.size < slack+4*deviceBytes*int64(used) {
		return nil
	}
	f, size, err := l.createFile(d.path+".new", devicesNum)
	if err != nil {
		return passing(err)
	}
	next := devicesFile{f: f, path: d.path, size: int64(size)}
	var buf []byte
	for from := uint32(1); from < n && err == nil; from += 4096 {
		buf = l.appendDevices(buf[:0], from, min(from+4096, n))
		err = next.write(l, buf)
	}
	if err == nil {
		err = l.cfg.files.sync(f)
	}
	if err == nil {
		err = l.cfg.files.rename(d.path+".new", d.path)
	}
	if err != nil {
		_ = f.Close()
		_ = l.cfg.files.remove(d.path + ".new") // a next attempt overwrites it
		return passing(fmt.Errorf("store: rewriting %s: %w", d.path, err))
	}
	next.dirty = false
	_ = d.f.Close() // superseded
	*d = next
	return l.cfg.files.syncDir(l.cfg.Dir)
}

// passing drops an error for lack of room: the old file is still good.
func passing(err error) error {
	if diskFull(err) {
		return nil
	}
	return err
}

func (l *Local) appendDevices(dst []byte, from, to uint32) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q := from; q < to; q++ {
		if d := &l.reg.queues[q]; !d.gone && d.device != 0 {
			dst = appendDevice(dst, l.reg.names[d.user].text, l.reg.names[d.device].text, d)
		}
	}
	return dst
}

// endedFile is one file of the journal of ended.
type endedFile struct {
	num    uint64
	path   string
	size   int64
	count  int
	lastMs int64 // latest end in it
}

// endedFiles is the journal: the last one is open for writing. The committer's own.
type endedFiles struct {
	files   []*endedFile
	f       *os.File // of the last
	startAt time.Time
	dirty   bool
}

func endedPath(dir string, num uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s%08d", endedPrefix, num))
}

// write appends what a batch has for the journal. The first write after a start or a rotation makes the file.
func (j *endedFiles) write(l *Local, b *batch) error {
	if len(b.ended) == 0 {
		return nil
	}
	if j.f == nil {
		num := uint64(1)
		if n := len(j.files); n > 0 {
			num = j.files[n-1].num + 1
		}
		g := &endedFile{num: num, path: endedPath(l.cfg.Dir, num)}
		f, size, err := l.createFile(g.path, endedNum+num)
		if err != nil {
			return err
		}
		g.size = int64(size)
		j.f, j.startAt, j.files = f, time.Now(), append(j.files, g)
	}
	g := j.files[len(j.files)-1]
	l.sums.seal(endedNum+g.num, g.size, b.ended)
	if err := writeAll(l.cfg.files, j.f, b.ended, g.size); err != nil {
		return fmt.Errorf("store: writing %s: %w", g.path, err)
	}
	g.size += int64(len(b.ended))
	g.count += b.endedCount
	g.lastMs = max(g.lastMs, b.endedLastMs)
	b.ended, b.endedCount = b.ended[:0], 0
	j.dirty = true
	return nil
}

// rotate seals the file when it is large or old, and removes those nobody needs any more.
func (j *endedFiles) rotate(l *Local, now time.Time) error {
	if n := len(j.files); j.f != nil && (j.files[n-1].size >= endedFileBytes || now.Sub(j.startAt) > l.cfg.DedupWindow/8) {
		if err := j.sync(l); err != nil {
			return err
		}
		err := j.f.Close()
		j.f = nil
		if err != nil {
			return fmt.Errorf("store: closing %s: %w", j.files[n-1].path, err)
		}
	}
	newer := 0
	for i, g := range slices.Backward(j.files) {
		if old := g.lastMs < now.Add(-l.cfg.DedupWindow).UnixMilli() || newer >= l.cfg.DedupMax; old && !(i == len(j.files)-1 && j.f != nil) {
			if err := l.cfg.files.remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("store: removing %s: %w", g.path, err)
			}
			j.files = slices.Delete(j.files, i, i+1)
			continue
		}
		newer += g.count
	}
	return nil
}

func (j *endedFiles) sync(l *Local) error {
	if !j.dirty {
		return nil
	}
	if err := l.cfg.files.sync(j.f); err != nil {
		return syncError{fmt.Errorf("store: syncing the journal of ended: %w", err)}
	}
	j.dirty = false
	return nil
}

// housekeeping is done once a second.
func (l *Local) housekeeping(now time.Time) error {
	l.mu.Lock()
	l.ended.age(now.Add(-l.cfg.DedupWindow).UnixMilli(), 10_000)
	l.mu.Unlock()
	if err := l.syncSides(); err != nil {
		return err
	}
	if err := l.journal.rotate(l, now); err != nil {
		return err
	}
	err := l.devices.compact(l)
	bytes := l.devices.size
	for _, g := range l.journal.files {
		bytes += g.size
	}
	l.mu.Lock()
	l.count.fileBytes = bytes
	l.mu.Unlock()
	return err
}

func (l *Local) syncSides() error {
	if err := l.journal.sync(l); err != nil {
		return err
	}
	if l.devices.dirty {
		if err := l.cfg.files.sync(l.devices.f); err != nil {
			return syncError{fmt.Errorf("store: syncing %s: %w", l.devices.path, err)}
		}
		l.devices.dirty = false
	}
	return nil
}

// numbered lists the files of dir named prefix NUMBER suffix, by number.
func numbered(dir, prefix, suffix string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("store: listing the data directory: %w", err)
	}
	var nums []uint64
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), prefix); ok {
			if name, ok = strings.CutSuffix(name, suffix); ok {
				if n, err := strconv.ParseUint(name, 10, 60); err == nil {
					nums = append(nums, n)
				}
			}
		}
	}
	slices.Sort(nums)
	return nums, nil
}
