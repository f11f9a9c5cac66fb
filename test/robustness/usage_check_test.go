package robustness

import (
	"testing"
	"time"
)

func TestCPUTime_CountsWork(t *testing.T) {
	before := cpuTime()
	for deadline := time.Now().Add(time.Minute); cpuTime()-before < 50*time.Millisecond; {
		if time.Now().After(deadline) {
			t.Fatal("a minute of work is less than 50 ms of time of a processor")
		}
	}
}

func TestDelayOf_IsTheTimeOnARunQueue(t *testing.T) {
	for text, want := range map[string]time.Duration{"822584 5045881 2\n": 5045881, "": 0, "1 x 2": 0} {
		if got := delayOf(text); got != want {
			t.Errorf("delayOf(%q) = %v, want %v", text, got, want)
		}
	}
}

func TestProfileOf_SeedsHaveAllProfilesInTurn(t *testing.T) {
	seen := map[traffic]bool{}
	for seed := range uint64(len(profiles())) {
		seen[profileOf(seed)] = true
	}
	if len(seen) != len(profiles()) && *profileName == "" {
		t.Errorf("profiles of %d seeds are %v, want all of %v", len(profiles()), seen, profiles())
	}
}
