package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used.
type usage struct {
	cpu      time.Duration // user and system, since its start
	rssBytes int64
}

// clockTick is USER_HZ, the unit of /proc/PID/stat. The kernel fixes it at 100 for user space on every platform Go runs on.
const clockTick = 10 * time.Millisecond

// processUsage reads /proc/PID/stat.
func processUsage(pid int) (usage, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("reading the server's usage: %w", err)
	}
	u, err := parseStat(text)
	if err != nil {
		return usage{}, fmt.Errorf("reading the server's usage: /proc/%d/stat: %w", pid, err)
	}
	return u, nil
}

// parseStat takes utime, stime and rss. The command's name may hold blanks and parentheses, so fields count from the last one.
func parseStat(text []byte) (usage, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return usage{}, errors.New("no command name")
	}
	fields := strings.Fields(string(text[end+1:])) // the first one is field 3 of the manual
	const utime, stime, rss = 14 - 3, 15 - 3, 24 - 3
	if len(fields) <= rss {
		return usage{}, fmt.Errorf("%d fields", len(fields))
	}
	var values [3]int64
	for i, at := range []int{utime, stime, rss} {
		var err error
		if values[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return usage{}, err
		}
	}
	return usage{cpu: time.Duration(values[0]+values[1]) * clockTick, rssBytes: values[2] * int64(os.Getpagesize())}, nil
}

// listenerPID finds the process of this machine that listens on the port of addr; 0 when addr is elsewhere or the process is not
// ours to look into.
func listenerPID(addr string) int {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || !isLocal(host) {
		return 0
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		listeningInodes(table, number, inodes)
	}
	if len(inodes) == 0 {
		return 0
	}
	processes, err := filepath.Glob("/proc/[0-9]*/fd")
	if err != nil {
		return 0
	}
	for _, dir := range processes {
		if holdsSocket(dir, inodes) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // digits by the pattern
			return pid
		}
	}
	return 0
}

// isLocal reports whether host is an address of this machine.
func isLocal(host string) bool {
	addrs, err := net.LookupHost(host)
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		ip := net.ParseIP(a)
		if ip == nil {
			continue
		}
		if ip.IsLoopback() {
			return true
		}
		for _, o := range own {
			if n, ok := o.(*net.IPNet); ok && n.IP.Equal(ip) {
				return true
			}
		}
	}
	return false
}

// listeningInodes adds the sockets of a table of /proc/net that listen on port.
func listeningInodes(table string, port int, inodes map[string]bool) {
	text, err := os.ReadFile(table)
	if err != nil {
		return // no IPv6 on this machine
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		const local, state, inode, listen = 1, 3, 9, "0A"
		f := strings.Fields(lines.Text())
		if len(f) > inode && f[state] == listen && strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) {
			inodes["socket:["+f[inode]+"]"] = true
		}
	}
}

func holdsSocket(dir string, inodes map[string]bool) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false // another user's process, or gone
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && inodes[target] {
			return true
		}
	}
	return false
}

// socketMemory is the kernel's memory in TCP buffers of this machine, both ends of local connections included.
func socketMemory() (memBytes int64, err error) {
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return 0, fmt.Errorf("reading the kernel's socket memory: %w", err)
	}
	return parseSockstat(string(text))
}

// parseSockstat reads the line "TCP: inuse 5 orphan 0 tw 0 alloc 8 mem 1"; mem is in pages.
func parseSockstat(text string) (memBytes int64, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "TCP:" {
			continue
		}
		for i := 1; i+1 < len(f); i += 2 {
			if f[i] != "mem" {
				continue
			}
			pages, err := strconv.ParseInt(f[i+1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("reading the kernel's socket memory: %w", err)
			}
			return pages * int64(os.Getpagesize()), nil
		}
	}
	return 0, errors.New("reading the kernel's socket memory: it is not told")
}

// slabMemory is the kernel's memory in objects, where sockets themselves live, of the whole machine.
func slabMemory() (memBytes int64, err error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("reading the kernel's memory: %w", err)
	}
	return parseMeminfo(string(text))
}

// parseMeminfo reads the line "Slab: 123 kB".
func parseMeminfo(text string) (memBytes int64, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "Slab:" {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading the kernel's memory: %w", err)
		}
		return kib << 10, nil
	}
	return 0, errors.New("reading the kernel's memory: it is not told")
}
