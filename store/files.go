package store

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	formatVersion = 1
	formatFile    = "FORMAT"
	lockFile      = "LOCK"
)

// files is every change the engine makes to the disk, and the reads while it runs, so that a test can let one fail.
type files struct {
	read     func(f *os.File, b []byte, off int64) (int, error)
	create   func(path string) (*os.File, error)
	write    func(f *os.File, b []byte, off int64) (int, error)
	sync     func(f *os.File) error
	truncate func(f *os.File, size int64) error
	rename   func(from, to string) error
	remove   func(path string) error
	syncDir  func(dir string) error
}

func osFiles() *files {
	return &files{
		create: func(path string) (*os.File, error) {
			return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
		},
		read:     func(f *os.File, b []byte, off int64) (int, error) { return f.ReadAt(b, off) },
		write:    func(f *os.File, b []byte, off int64) (int, error) { return f.WriteAt(b, off) },
		sync:     func(f *os.File) error { return unix.Fdatasync(int(f.Fd())) },
		truncate: func(f *os.File, size int64) error { return f.Truncate(size) },
		rename:   os.Rename,
		remove:   os.Remove,
		syncDir: func(dir string) error {
			d, err := os.Open(dir)
			if err != nil {
				return err
			}
			return errors.Join(d.Sync(), d.Close())
		},
	}
}

// diskFull reports whether err says that there is no room: the one write error that passes by itself.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// lockDir makes dir if need be and takes it for this process.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("store: making the data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("store: opening the lock of the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(f.Name())
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s (process %s)", ErrInUse, dir, bytes.TrimSpace(holder))
		}
		return nil, fmt.Errorf("store: locking the data directory: %w", err)
	}
	// The number in it is only a help for whoever reads the error; the lock is what counts.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}

// format is the content of the FORMAT file.
type format struct {
	seed  uint64 // keys the hashes and checksums: nobody outside can forge a record inside a payload
	epoch uint64 // starts of this directory; the upper part of every Seq
	clean bool   // the last run ended by Close
	due   error  // why it is not on the disk yet, which was full: it goes there before a message does. nil: it is
}

// openFormat reads the FORMAT file, or starts a new directory, and counts the start. On a full disk the count stays due, but the mark of
// a good end is off, for that needs no room: then a store whose backlog fills the disk can start, and deliver it.
func openFormat(fl *files, dir string) (format, error) {
	path := filepath.Join(dir, formatFile)
	var fm format
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if old, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix)); len(old) > 0 {
			return fm, fmt.Errorf("store: %s has segments but no %s file: not a complete data directory", dir, formatFile)
		}
		var seed [8]byte
		if _, err := rand.Read(seed[:]); err != nil {
			return fm, fmt.Errorf("store: making a seed: %w", err)
		}
		fm.seed = binary.LittleEndian.Uint64(seed[:])
	case err != nil:
		return fm, fmt.Errorf("store: reading the format: %w", err)
	default:
		if fm, err = parseFormat(string(b)); err != nil {
			return fm, fmt.Errorf("%w: %s", err, path)
		}
	}
	wasClean, first := fm.clean, fm.epoch == 0
	fm.epoch, fm.clean = fm.epoch+1, false
	err = fm.write(fl, dir)
	if diskFull(err) && !first {
		fm.due = err
		err = unmark(fl, path)
	}
	fm.clean = wasClean
	return fm, err
}

// unmark cuts the mark of a good end off a FORMAT file where it stands.
func unmark(fl *files, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("store: opening the format: %w", err)
	}
	b, err := io.ReadAll(f)
	if rest, marked := bytes.CutSuffix(b, []byte(cleanLine)); err == nil && marked {
		if err = fl.truncate(f, int64(len(rest))); err == nil {
			err = fl.sync(f)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("store: taking the mark of a good end off the format: %w", err)
	}
	return nil
}

const cleanLine = "clean\n"

// write replaces the FORMAT file.
func (fm format) write(fl *files, dir string) error {
	text := fmt.Sprintf("holdfast-store %d\nseed %016x\nepoch %d\n", formatVersion, fm.seed, fm.epoch)
	if fm.clean {
		text += cleanLine
	}
	if err := replaceFile(fl, filepath.Join(dir, formatFile), []byte(text)); err != nil {
		return fmt.Errorf("store: writing the format: %w", err)
	}
	return nil
}

func parseFormat(text string) (fm format, err error) {
	var version int
	if n, _ := fmt.Sscanf(text, "holdfast-store %d", &version); n != 1 {
		return fm, errors.New("store: not a format file")
	}
	if version != formatVersion {
		return fm, fmt.Errorf("%w: the directory has version %d, this program reads version %d", ErrVersion, version, formatVersion)
	}
	_, rest, _ := strings.Cut(text, "\n")
	if n, _ := fmt.Sscanf(rest, "seed %x\nepoch %d\n", &fm.seed, &fm.epoch); n != 2 {
		return fm, errors.New("store: the format file is damaged")
	}
	fm.clean = strings.HasSuffix(rest, "\n"+cleanLine)
	return fm, nil
}

// replaceFile writes a whole file so that a crash leaves the old or the new one, and a failure the old one.
func replaceFile(fl *files, path string, b []byte) error {
	f, err := fl.create(path + ".new")
	if err != nil {
		return err
	}
	err = writeAll(fl, f, b, 0)
	if err == nil {
		err = fl.sync(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fl.remove(path+".new"))
	}
	if err := fl.rename(path+".new", path); err != nil {
		return err
	}
	return fl.syncDir(filepath.Dir(path))
}
