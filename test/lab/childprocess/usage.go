package childprocess

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a process has and has used, as the kernel of Linux counts it.
type Usage struct {
	// Resident and Peak are the present and the largest resident memory in bytes.
	Resident, Peak int64
	// CPU is the processor time so far, user and system.
	CPU time.Duration
	// Descriptors counts the open file descriptors.
	Descriptors int
}

// Usage reads what the process uses. It fails after the exit of the process.
func (c *Child) Usage() (Usage, error) { return UsageOf(c.PID()) }

// UsageOf reads what a process uses.
func UsageOf(pid int) (u Usage, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		var kibibytes int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kibibytes); err == nil {
			u.Resident = kibibytes << 10
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kibibytes); err == nil {
			u.Peak = kibibytes << 10
		}
	}
	if u.CPU, err = CPU(pid); err != nil {
		return u, err
	}
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	u.Descriptors = len(open)
	return u, err
}

// ResetPeak makes the present resident memory the peak.
func (c *Child) ResetPeak() error {
	return os.WriteFile(filepath.Join("/proc", strconv.Itoa(c.PID()), "clear_refs"), []byte("5"), 0o200)
}

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

// CPU returns the CPU time of the process so far, user and system.
func (c *Child) CPU() (time.Duration, error) { return CPU(c.PID()) }

// Spent runs work and returns the CPU time of the process during it.
func (c *Child) Spent(work func() error) (time.Duration, error) { return Spent(work, c.PID()) }

// Resident returns the resident memory of the process in bytes.
func (c *Child) Resident() (int64, error) {
	used, err := c.Usage()
	return used.Resident, err
}
