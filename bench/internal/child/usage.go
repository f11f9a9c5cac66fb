package child

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time of processes so far, user and system, from the kernel's clock of each
// process. The ticks in /proc are too coarse for a process that sleeps most of the time.
func CPU(pids ...int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: the CPU time of all threads
	var sum time.Duration
	for _, pid := range pids {
		var used unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
			return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
		}
		sum += time.Duration(used.Nano())
	}
	return sum, nil
}

// Spent runs work and returns the total CPU time of processes during it.
func Spent(work func() error, pids ...int) (time.Duration, error) {
	before, err := CPU(pids...)
	if err != nil {
		return 0, err
	}
	if err := work(); err != nil {
		return 0, err
	}
	after, err := CPU(pids...)
	return after - before, err
}

// Resident returns the resident memory of a process in bytes.
func Resident(pid int) (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// Peak returns the largest resident memory that a process had so far, in bytes.
func Peak(pid int) (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		var kibibytes int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kibibytes); err == nil {
			return kibibytes << 10, nil
		}
	}
	return 0, fmt.Errorf("the kernel reports no peak of process %d", pid)
}

// Children returns the ids of child processes that run the named programs. A devcluster does not
// expose the ids of its processes.
func Children(names ...string) ([]int, error) {
	found := make([]int, 0, len(names))
	for _, name := range names {
		pid, err := childNamed(name)
		if err != nil {
			return nil, err
		}
		found = append(found, pid)
	}
	return found, nil
}

func childNamed(name string) (int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var found []int
	for _, path := range stats {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // the process has exited meanwhile
		}
		if pid, ok := ours(string(content), name); ok {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("this process runs %d programs named %s, want one", len(found), name)
	}
	return found[0], nil
}

// ours parses a line of /proc/*/stat, "pid (name) state parent …". The kernel truncates the name to
// 15 characters.
func ours(stat, name string) (pid int, ok bool) {
	begin, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if begin < 0 || end < begin || stat[begin+1:end] != name[:min(len(name), 15)] {
		return 0, false
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
		return 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(stat[:begin]))
	return pid, err == nil
}
