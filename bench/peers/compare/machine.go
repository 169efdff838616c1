package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// machine is where it was run.
type machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryGiB int64  `json:"memory_gib"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
}

func (m *machine) String() string {
	return fmt.Sprintf("%d cores (%s), %d GiB, Linux %s, %s", m.Cores, m.CPU, m.MemoryGiB, m.Kernel, m.Go)
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: procLine("/proc/cpuinfo", "model name"), Kernel: "?"}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	if kib, err := strconv.ParseInt(strings.TrimSuffix(procLine("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.MemoryGiB = (kib + 1<<19) >> 20
	}
	return m
}

// procLine is the value of the first line of a file of /proc with that name.
func procLine(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "?"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "?"
}

// onDisk refuses a directory in memory, where an fsync costs nothing.
func onDisk(dir string) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("the data directory %s: %w", dir, err)
	}
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	if kind := uint32(fs.Type); kind == tmpfs || kind == ramfs {
		return fmt.Errorf("the data directory %s is in memory, where syncs cost nothing: name one on a disk", dir)
	}
	return nil
}
