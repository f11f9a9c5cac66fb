package childprocess

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestCPU_CountsTheWorkOfAProcess(t *testing.T) {
	const work = 30 * time.Millisecond
	spent, err := Spent(func() error {
		before, err := CPU(os.Getpid())
		if err != nil {
			return err
		}
		for used := before; used < before+work; {
			if used, err = CPU(os.Getpid()); err != nil {
				return err
			}
		}
		return nil
	}, os.Getpid())
	if err != nil || spent < work {
		t.Errorf("spent %v, %v; want %v at least", spent, err, work)
	}
	if _, err := CPU(1 << 27); err == nil {
		t.Error("a process that cannot exist has a CPU clock")
	}
}

func TestUsageOf_PeakIsNotBelowTheMemoryOfNow(t *testing.T) {
	// The kernel counts both in batches of pages.
	if used, err := UsageOf(os.Getpid()); err != nil || used.Resident == 0 || used.Peak < used.Resident-8<<20 {
		t.Errorf("used %+v, %v; want a peak of %d at least", used, err, used.Resident)
	}
	if _, err := UsageOf(1 << 27); err == nil {
		t.Error("a process that cannot exist has a usage")
	}
}

func TestOurs_TellsChildrenByNameAndParent(t *testing.T) {
	own := os.Getpid()
	for _, c := range []struct {
		stat string
		want int
	}{
		{stat: fmt.Sprintf("42 (kube-controller) S %d 1 1", own), want: 42},
		{stat: fmt.Sprintf("42 (kube-controller) S %d 1 1", own+1)},
		{stat: fmt.Sprintf("42 (kube-apiserver) S %d 1 1", own)},
		{stat: fmt.Sprintf("42 (a) (kube-controller) S %d 1 1", own)},
		{stat: "42"},
	} {
		pid, ok := ours(c.stat, "kube-controller-manager")
		if pid != c.want || ok != (c.want != 0) {
			t.Errorf("%q: process %d, %v; want %d", c.stat, pid, ok, c.want)
		}
	}
}
