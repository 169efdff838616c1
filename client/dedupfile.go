package client

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"holdfast/codec"
)

// DedupStore keeps the ids of settled messages over a restart of the program. The client calls Append from one
// goroutine at a time, just before the confirmations of these messages leave, or at once when there is no connection:
// the mark is there when the message comes again. (The other way round a crash between the two could lose the mark, but
// not the message.)
type DedupStore interface {
	// Load gives the remembered ids, oldest first, until yield returns false. Dial calls it once.
	Load(yield func(id string) bool) error
	// Append remembers ids. An error is reported as Events.Warning; the messages are confirmed all the same, since a
	// lost mark can only cost a second copy.
	Append(ids []string) error
}

// dedupMagic opens the file and names its layout.
const dedupMagic = "holdfast dedup 1\n"

// DedupFile is a DedupStore in one append-only file.
//
//	file   = "holdfast dedup 1\n" record*
//	record = | length 1 B | id | CRC-32C of length and id, 4 B little-endian |
//
// A torn record at the end (a crash in a write) is cut off at the next open. What Append returned survives kill -9.
// It is not synced to the disk, so a power cut may lose the last seconds of it: that costs second copies, never a
// message. With more than twice max ids the file is rewritten with the newest max, synced, and put in place in one step.
type DedupFile struct {
	path string // static
	max  int    // static

	// Guarded by mu.
	mu     sync.Mutex
	file   *os.File
	ids    []string // in the file, oldest first
	buf    []byte
	broken bool // the last write failed: its remains must be cut off first
	size   int64
}

// OpenDedupFile opens or creates the file at path, which remembers at least the last max ids (max >= 1). One program
// at a time may use it.
func OpenDedupFile(path string, max int) (*DedupFile, error) {
	if max < 1 {
		return nil, errors.New("open dedup file: max must be at least 1")
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open dedup file: %w", err)
	}
	f := &DedupFile{path: path, max: max, file: file}
	if err := f.recover(); err != nil {
		return nil, fmt.Errorf("open dedup file %s: %w", path, errors.Join(err, file.Close()))
	}
	return f, nil
}

// recover reads the file up to its first bad record and cuts it there.
func (f *DedupFile) recover() error {
	r := bufio.NewReader(f.file)
	head := make([]byte, len(dedupMagic))
	n, err := io.ReadFull(r, head)
	switch {
	case err == nil && string(head) == dedupMagic:
		f.size = int64(n)
	case err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		if err == nil {
			err = errors.New("not a dedup file of this version")
		}
		return err
	case string(head[:n]) != dedupMagic[:n]:
		return errors.New("not a dedup file of this version")
	default: // new, or cut inside its first bytes
		if _, err := f.file.WriteAt([]byte(dedupMagic), 0); err != nil {
			return err
		}
		f.size = int64(len(dedupMagic))
		return f.file.Truncate(f.size)
	}
	for {
		id, n, err := readDedupRecord(r)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		f.ids = append(f.ids, id)
		f.size += int64(n)
	}
	if err := f.file.Truncate(f.size); err != nil {
		return err
	}
	return f.compact()
}

// readDedupRecord returns n == 0 at the end and at a torn or damaged record.
func readDedupRecord(r *bufio.Reader) (id string, n int, err error) {
	var rec [1 + codec.MessageIDBytesMax + 4]byte
	length, err := r.ReadByte()
	if errors.Is(err, io.EOF) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	if length == 0 || int(length) > codec.MessageIDBytesMax {
		return "", 0, nil
	}
	rec[0] = length
	body := rec[1 : 1+int(length)+4]
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", 0, nil
		}
		return "", 0, err
	}
	sum := crc32.Checksum(rec[:1+length], crc32.MakeTable(crc32.Castagnoli))
	if binary.LittleEndian.Uint32(body[length:]) != sum {
		return "", 0, nil
	}
	return string(body[:length]), 1 + len(body), nil
}

func appendDedupRecord(dst []byte, id string) []byte {
	start := len(dst)
	dst = append(append(dst, byte(len(id))), id...)
	sum := crc32.Checksum(dst[start:], crc32.MakeTable(crc32.Castagnoli))
	return binary.LittleEndian.AppendUint32(dst, sum)
}

// Load gives the ids in the file, oldest first.
func (f *DedupFile) Load(yield func(id string) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.ids {
		if !yield(id) {
			break
		}
	}
	return nil
}

// Append writes ids behind the others, in one write. After a failed write nothing of them is in the file, or will be; a
// failed compaction leaves them in it.
func (f *DedupFile) Append(ids []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken {
		if err := f.file.Truncate(f.size); err != nil {
			return fmt.Errorf("cut off a failed write: %w", err)
		}
		f.broken = false
	}
	f.buf = f.buf[:0]
	for _, id := range ids {
		if len(id) == 0 || len(id) > codec.MessageIDBytesMax {
			return fmt.Errorf("append to dedup file: an id of %d bytes", len(id))
		}
		f.buf = appendDedupRecord(f.buf, id)
	}
	if _, err := f.file.WriteAt(f.buf, f.size); err != nil {
		f.broken = true
		return fmt.Errorf("append to dedup file: %w", err)
	}
	f.size += int64(len(f.buf))
	for _, id := range ids {
		f.ids = append(f.ids, string([]byte(id))) // the id may share a large message's memory
	}
	return f.compact()
}

// compact rewrites the file with the newest max ids once it holds twice as many. A crash leaves the old file or the
// new one.
func (f *DedupFile) compact() error {
	if len(f.ids) <= 2*f.max {
		return nil
	}
	keep := append([]string(nil), f.ids[len(f.ids)-f.max:]...)
	data := []byte(dedupMagic)
	for _, id := range keep {
		data = appendDedupRecord(data, id)
	}
	next, err := os.OpenFile(f.path+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("compact dedup file: %w", err)
	}
	_, err = next.Write(data)
	if err == nil {
		err = next.Sync() // before the rename: a name must never point to data that is not there
	}
	if err == nil {
		err = os.Rename(next.Name(), f.path)
	}
	if err != nil {
		return fmt.Errorf("compact dedup file: %w", errors.Join(err, next.Close(), os.Remove(next.Name())))
	}
	old := f.file
	f.file, f.ids, f.size = next, keep, int64(len(data))
	if err := old.Close(); err != nil {
		return fmt.Errorf("close the old dedup file: %w", err)
	}
	return nil
}

// Close closes the file. The client does not do it.
func (f *DedupFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}
