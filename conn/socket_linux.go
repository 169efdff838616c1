package conn

import "golang.org/x/sys/unix"

// kernelUnsent is the number of bytes in the send queue of fd that the peer has not acknowledged.
func kernelUnsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// kernelUnread is the number of bytes in the receive queue of fd.
func kernelUnread(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// peerShut reports whether the peer of fd has closed its side or reset the connection.
func peerShut(fd int) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p[:], 0)
	return err == nil && n > 0
}

// limitUnsent bounds what the kernel buffers behind what is in flight.
func limitUnsent(fd, bytes int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
}

// filesMax is the descriptor limit of this process.
func filesMax() (int, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, err
	}
	return int(min(r.Cur, 1<<30)), nil
}
