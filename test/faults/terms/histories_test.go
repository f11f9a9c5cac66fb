package terms

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/schedule"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

var (
	first    = flag.Uint64("faults.first", 1, "seed of the first history; those that follow have the next numbers")
	seeds    = flag.Int("faults.seeds", 20, "number of histories")
	each     = flag.Int("faults.each", 6, "faults in each history")
	parallel = flag.Int("faults.together", 4, "histories under way at one time")
	keep     = flag.String("faults.keep", "", "directory that keeps the logs of all processes, one folder for each history")
)

// TestHistories injects random faults and checks the promises of internal/term: registers are
// linearizable, no write takes effect under an old epoch, no two replicas act for a shard at once,
// and no shard stays without a replica for longer than the bound.
func TestHistories(t *testing.T) {
	testkit.LongTest(t, 1)
	if *seeds < 1 || *each < 1 {
		t.Fatalf("%d histories of %d faults show nothing", *seeds, *each)
	}
	all := totals{faultsByKind: map[schedule.Kind]int{}}
	semaphore := make(chan struct{}, max(1, *parallel))
	var running sync.WaitGroup
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		running.Go(func() {
			semaphore <- struct{}{}
			defer func() { <-semaphore }()
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runHistory(t, seed, &all) })
		})
	}
	running.Wait()
	t.Logf("%d histories from seed %d, %d faults in each: %v", all.histories, *first, *each, all.sum)
	t.Logf("faults by kind: %v", all.faultsByKind)
}

// runHistory injects the faults of a seed and analyzes the history.
func runHistory(t *testing.T, seed uint64, all *totals) {
	replicas, shards := 3+int(seed%3), 6+int(seed%4)
	faults := schedule.Draw(seed, schedule.Setting{Replicas: replicas, Faults: *each, TTL: ttl})
	t.Logf("reproduce with -faults.first=%d -faults.seeds=1 -faults.each=%d; %d replicas, %d shards; %s",
		seed, *each, replicas, shards, schedule.Describe(faults))
	all.countFaults(faults)
	fx := newFixture(t, 1, shards)
	fx.startReplicas(replicas, nil)
	if err := fx.waitForWrites(); err != nil {
		t.Fatal(err)
	}
	if err := fx.injectAll(faults); err != nil {
		t.Errorf("a fault was not injected: %v", err)
	}
	if err := fx.waitForWrites(); err != nil {
		t.Error(err)
	}
	testkit.Pause(context.Background(), time.Second) // of work after the last fault
	h, err := fx.finish()
	if err != nil {
		t.Error(err)
	}
	report := history.Analyze(h)
	t.Logf("seed %d: %v", seed, report)
	if err := report.Err(minimum(shards, len(faults))); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	all.add(report)
}

// minimum is far below the figures of a loaded machine.
func minimum(shards, faults int) history.Minimum {
	return history.Minimum{Applied: 2 * faults, Reads: 20 * faults, Terms: shards + 1}
}

// totals adds up reports.
type totals struct {
	mu           sync.Mutex // guards the following fields
	histories    int
	faultsByKind map[schedule.Kind]int
	sum          history.Report
}

func (a *totals) countFaults(faults []schedule.Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range faults {
		a.faultsByKind[f.Kind]++
	}
}

func (a *totals) add(v history.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.histories++
	a.sum = a.sum.Plus(v)
}
