package child

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of times in /proc.
const ticksPerSecond = 100

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
func (p *Process) Usage() (Usage, error) { return UsageOf(p.ID()) }

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
	if u.CPU, err = cpuOf(dir); err != nil {
		return u, err
	}
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	u.Descriptors = len(open)
	return u, err
}

func cpuOf(dir string) (time.Duration, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s/stat has %d fields after the name", dir, len(fields))
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		value, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += value
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// ResetPeak makes the present resident memory the peak.
func (p *Process) ResetPeak() error {
	return os.WriteFile(filepath.Join("/proc", strconv.Itoa(p.ID()), "clear_refs"), []byte("5"), 0o200)
}
