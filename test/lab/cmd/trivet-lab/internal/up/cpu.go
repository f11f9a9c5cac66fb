package up

import (
	"bytes"
	"context"
	"math"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// cpuPeriod is the time over which a CPU figure is a mean.
	cpuPeriod = 10 * time.Second
	// ticksPerSecond is the unit of CPU times in /proc, which is the same on all Linux systems.
	ticksPerSecond = 100
)

// cpuMeter measures the CPU of this process and its children. Only Linux tells it.
type cpuMeter struct{ cores atomic.Uint64 } // bits of a float64

func newCPUMeter() *cpuMeter { return &cpuMeter{} }

// Cores returns the mean number of busy cores in the last period; 0 while it is not known.
func (m *cpuMeter) Cores() float64 { return math.Float64frombits(m.cores.Load()) }

// Run measures until ctx ends.
func (m *cpuMeter) Run(ctx context.Context) error {
	tick := time.NewTicker(cpuPeriod)
	defer tick.Stop()
	before, at := cpuTicks(os.Getpid()), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			ticks := cpuTicks(os.Getpid())
			m.cores.Store(math.Float64bits(coresOf(before, ticks, now.Sub(at))))
			before, at = ticks, now
		}
	}
}

// coresOf returns the busy cores between two measurements of CPU times by process. A process that
// has started meanwhile counts from its start; one that has ended is left out.
func coresOf(before, after map[int]uint64, elapsed time.Duration) float64 {
	var ticks uint64
	for pid, now := range after {
		if was := before[pid]; now >= was {
			ticks += now - was
		}
	}
	return float64(ticks) / ticksPerSecond / elapsed.Seconds()
}

// cpuTicks returns the CPU times of a process and its children by their ids.
func cpuTicks(parent int) map[int]uint64 {
	ticks := map[int]uint64{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return ticks
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // the process has ended
		}
		if ppid, used, ok := parseStat(stat); ok && (pid == parent || ppid == parent) {
			ticks[pid] = used
		}
	}
	return ticks
}

// parseStat returns the parent and the CPU time of a line of /proc/PID/stat. The name of the
// program is in parentheses and may have spaces and parentheses.
func parseStat(stat []byte) (ppid int, ticks uint64, ok bool) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, 0, false
	}
	ppid, err := strconv.Atoi(string(fields[1]))
	user, userErr := strconv.ParseUint(string(fields[11]), 10, 64)
	system, systemErr := strconv.ParseUint(string(fields[12]), 10, 64)
	return ppid, user + system, err == nil && userErr == nil && systemErr == nil
}
