package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/schedule"
)

func TestDraw_SeedDecidesEverything(t *testing.T) {
	setting := schedule.Setting{Replicas: 3, Faults: 40, TTL: 2 * time.Second}
	first := schedule.Draw(7, setting)
	if diff := cmp.Diff(first, schedule.Draw(7, setting)); diff != "" {
		t.Errorf("the same seed drew other faults (-first +second):\n%s", diff)
	}
	if cmp.Equal(first, schedule.Draw(8, setting)) {
		t.Error("another seed drew the same")
	}
}

func TestDraw_EveryKindOnceBeforeAnyTwice(t *testing.T) {
	counts := map[schedule.Kind]int{}
	for _, f := range schedule.Draw(1, schedule.Setting{Replicas: 5, Faults: 22, TTL: 2 * time.Second}) {
		counts[f.Kind]++
	}
	if len(counts) != 11 {
		t.Errorf("%d kinds in 22 faults, want 11: %v", len(counts), counts)
	}
	for kind, n := range counts {
		if n != 2 {
			t.Errorf("%d times %s, want 2", n, kind)
		}
	}
}

// CI runs twenty short histories. They must contain every kind several times.
func TestDraw_TwentyShortHistoriesMeetEveryKind(t *testing.T) {
	counts := map[schedule.Kind]int{}
	for seed := range uint64(20) {
		for _, f := range schedule.Draw(seed+1, schedule.Setting{Replicas: 3 + int(seed+1)%3, Faults: 6, TTL: 2 * time.Second}) {
			counts[f.Kind]++
		}
	}
	for _, kind := range []schedule.Kind{
		schedule.Kill, schedule.Freeze, schedule.FreezeLong, schedule.BlockReceive, schedule.BlockReceiveLong, schedule.BlockSend, schedule.BlockSendLong,
		schedule.Revoke, schedule.Compact, schedule.Outage, schedule.OutageLong,
	} {
		if counts[kind] < 5 {
			t.Errorf("%s occurs %d times", kind, counts[kind])
		}
	}
	t.Log(counts)
}

// A second fault on a target that is already faulty has no effect.
func TestDraw_OneFaultPerTargetAtATime(t *testing.T) {
	etcd := func(k schedule.Kind) bool {
		return slices.Contains([]schedule.Kind{schedule.Outage, schedule.OutageLong, schedule.Revoke, schedule.Compact}, k)
	}
	outage := func(k schedule.Kind) bool { return k == schedule.Outage || k == schedule.OutageLong }
	for seed := range uint64(200) {
		drawn := schedule.Draw(seed, schedule.Setting{Replicas: 3, Faults: 30, TTL: 2 * time.Second})
		for i, a := range drawn {
			for _, b := range drawn[i+1:] {
				if b.Start < a.Start {
					t.Fatalf("seed %d: %v comes after %v", seed, a, b)
				}
				together := etcd(a.Kind) && etcd(b.Kind) || !outage(a.Kind) && !outage(b.Kind) && a.Replica == b.Replica
				if together && b.Start <= a.Start+a.Duration {
					t.Errorf("seed %d: %v while %v", seed, b, a)
				}
			}
		}
	}
}

func TestEnd_IsTheEndOfTheLastFault(t *testing.T) {
	faults := []schedule.Fault{{Start: time.Second, Duration: 5 * time.Second}, {Start: 3 * time.Second, Duration: time.Second}}
	if got := schedule.End(faults); got != 6*time.Second {
		t.Errorf("End = %v, want 6s", got)
	}
	if got := schedule.End(nil); got != 0 {
		t.Errorf("End of nothing = %v", got)
	}
}
