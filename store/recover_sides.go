package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"holdfast/codec"
)

// loadDevices reads the devices file, cuts a torn tail, and leaves it open for writing.
func (l *Local) loadDevices() error {
	path := filepath.Join(l.cfg.Dir, devicesName)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		var size int
		if f, size, err = l.createFile(path, devicesNum); err != nil {
			return err
		}
		l.devices = devicesFile{f: f, path: path, size: int64(size)}
		return nil
	}
	if err != nil {
		return fmt.Errorf("store: opening the devices: %w", err)
	}
	l.devices = devicesFile{f: f, path: path}
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("store: opening the devices: %w", err)
	}
	end, err := l.walk(f, devicesNum, st.Size(), nil, func(frame []byte, _ int64) { l.loadDevice(frame) })
	if err != nil {
		return err
	}
	if end < st.Size() {
		l.cfg.Log.Warn("the devices file had a torn tail", "file", path, "from", end, "to", st.Size())
		if err := l.cfg.files.truncate(f, end); err != nil {
			return fmt.Errorf("store: cutting the devices file: %w", err)
		}
	}
	l.devices.size = end
	return l.devices.compact(l)
}

func (l *Local) loadDevice(frame []byte) {
	user, device, flags, seenMs, ok := parseDevice(frame)
	if !ok {
		return
	}
	if flags&deviceGone != 0 {
		if q := l.reg.find(l.reg.number(user), l.reg.number(device)); q != 0 {
			l.reg.forget(q)
			l.reg.release(q)
		}
		return
	}
	u, d := l.reg.name(user), l.reg.name(device)
	q := l.reg.find(u, d)
	if q == 0 {
		q = l.reg.add(u, d)
	}
	e := &l.reg.queues[q]
	e.seenMs, e.notedMs, e.heir = seenMs, seenMs, flags&deviceHeir != 0
}

// loadEnded reads the journal of ended into memory.
func (l *Local) loadEnded() error {
	nums, err := numbered(l.cfg.Dir, endedPrefix, "")
	if err != nil {
		return err
	}
	sinceMs := time.Now().Add(-l.cfg.DedupWindow).UnixMilli()
	window := make([]byte, 0, scanWindowBytes)
	for _, num := range nums {
		g := &endedFile{num: num, path: endedPath(l.cfg.Dir, num)}
		f, err := os.Open(g.path)
		if err != nil {
			return fmt.Errorf("store: opening the journal of ended: %w", err)
		}
		st, err := f.Stat()
		if err == nil {
			g.size = st.Size()
			_, err = l.walk(f, endedNum+num, g.size, window, func(frame []byte, _ int64) { l.loadEnd(g, frame, sinceMs) })
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("store: reading the journal of ended: %w", err)
		}
		l.count.fileBytes += g.size
		l.journal.files = append(l.journal.files, g)
	}
	l.count.fileBytes += l.devices.size
	return nil
}

func (l *Local) loadEnd(g *endedFile, frame []byte, sinceMs int64) {
	var e endedEntry
	user, device, ok := parseEnded(frame, &e)
	if !ok {
		return
	}
	g.count++
	g.lastMs = max(g.lastMs, e.endedMs)
	l.seq = max(l.seq, e.seq)
	if e.endedMs < sinceMs || e.priority > codec.PriorityBulk {
		return
	}
	e.user, e.device = l.reg.name(user), l.reg.name(device)
	l.ended.push(e)
}
