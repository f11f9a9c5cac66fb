package robustness

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage measures what processors this process and its children use.
type usage struct {
	began time.Time
	used  time.Duration
}

func newUsage() usage { return usage{began: time.Now(), used: cpuTime()} }

// cores returns the mean number of processors in use since newUsage.
func (u usage) cores() float64 { return float64(cpuTime()-u.used) / float64(time.Since(u.began)) }

// cpuTime is the time that this process, its ended children and its present ones have run.
func cpuTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var used syscall.Rusage
		if err := syscall.Getrusage(who, &used); err == nil {
			sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
		}
	}
	for _, pid := range ownProcesses()[1:] {
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue // It has ended.
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, at := range []int{11, 12} { // utime and stime, in ticks of 10 ms
			if at < len(fields) {
				if ticks, err := strconv.ParseInt(fields[at], 10, 64); err == nil {
					sum += time.Duration(ticks) * 10 * time.Millisecond
				}
			}
		}
	}
	return sum
}
