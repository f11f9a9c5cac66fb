package up

import (
	"os"
	"testing"
	"time"
)

func TestCoresOf_CountsNewProcessesAndOmitsEndedOnes(t *testing.T) {
	before := map[int]uint64{1: 100, 2: 500, 3: 900}
	after := map[int]uint64{1: 150, 3: 100 /* another process has the id */, 4: 50}
	if got := coresOf(before, after, 2*time.Second); got != 0.5 {
		t.Errorf("coresOf = %v, want 0.5", got)
	}
}

func TestParseStat(t *testing.T) {
	for stat, want := range map[string]struct {
		ppid  int
		ticks uint64
		ok    bool
	}{
		"7 (a) b) c) S 3 7 7 0 -1 4194304 1 0 0 0 11 22 5 6 20 0 1 0 5": {3, 33, true},
		"7 (a) S 3 7": {},
		"":            {},
		"7 (a) S x 7 7 0 -1 4194304 1 0 0 0 11 22 5 6 20 0 1 0 5": {0, 33, false},
	} {
		if ppid, ticks, ok := parseStat([]byte(stat)); ok != want.ok || ok && (ppid != want.ppid || ticks != want.ticks) {
			t.Errorf("parseStat(%q) = %d, %d, %t", stat, ppid, ticks, ok)
		}
	}
	if _, found := cpuTicks(os.Getpid())[os.Getpid()]; !found {
		t.Error("cpuTicks does not have this process")
	}
}
