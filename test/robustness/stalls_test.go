package robustness

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

const (
	stallCheckInterval = 250 * time.Millisecond
	// A shorter wait for a processor is normal on a machine that also does other work. Processes
	// start and end rarely.
	shortestStall  = 25 * time.Millisecond
	familyInterval = 2 * time.Second
)

// watchForStalls records each time in which the machine did not run a process of the world: this
// process was late itself, or a thread of one of them waited for a processor.
func (w *world) watchForStalls(ctx context.Context) {
	waiting := &waiting{}
	for last := w.now(); ctx.Err() == nil; {
		testkit.Pause(ctx, stallCheckInterval)
		now := w.now()
		stall := min(max(now-last-stallCheckInterval, waiting.longest()), now-last)
		if stall >= shortestStall {
			w.mu.Lock()
			w.record.Windows = append(w.record.Windows, history.Window{From: now - stall, To: now})
			w.mu.Unlock()
		}
		last = now
	}
}

// waiting measures how long threads of processes could run and did not.
type waiting struct {
	before    map[string]time.Duration
	processes []string
	listed    time.Time
}

// longest returns the longest wait of one thread since the last call, or 0 where the kernel does
// not tell.
func (w *waiting) longest() time.Duration {
	if time.Since(w.listed) > familyInterval {
		w.processes, w.listed = ownProcesses(), time.Now()
	}
	var longest time.Duration
	now := map[string]time.Duration{}
	for _, pid := range w.processes {
		threads, err := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
		if err != nil {
			return 0
		}
		for _, thread := range threads {
			text, err := os.ReadFile(thread)
			if err != nil {
				continue // It has ended.
			}
			now[thread] = delayOf(string(text))
			if before, known := w.before[thread]; known {
				longest = max(longest, now[thread]-before)
			}
		}
	}
	w.before = now
	return longest
}

// delayOf returns the second number of a schedstat file: the nanoseconds on a run queue.
func delayOf(text string) time.Duration {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	nanoseconds, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(nanoseconds)
}

// ownProcesses returns the ids of this process and its children.
func ownProcesses() []string {
	self := strconv.Itoa(os.Getpid())
	ids := []string{self}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return ids
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended.
		}
		// The name, in parentheses, may have spaces; the state and the parent follow.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == self {
			ids = append(ids, filepath.Base(filepath.Dir(file)))
		}
	}
	return ids
}
