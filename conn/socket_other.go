//go:build !linux

package conn

import "golang.org/x/sys/unix"

// kernelUnsent has no portable answer; Unsent is the outbox alone then.
func kernelUnsent(int) int { return 0 }

// kernelUnread has no portable answer either.
func kernelUnread(int) int { return 0 }

// peerShut has none either: such a connection is found out when it is read.
func peerShut(int) bool { return false }

// limitUnsent is left to SendBufferBytes.
func limitUnsent(int, int) error { return nil }

// filesMax is the descriptor limit of this process.
func filesMax() (int, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, err
	}
	return int(min(r.Cur, 1<<30)), nil
}
