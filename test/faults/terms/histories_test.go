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
)

var (
	first    = flag.Uint64("faults.first", 1, "seed of the first history; those that follow have the next numbers")
	seeds    = flag.Int("faults.seeds", 20, "number of histories")
	each     = flag.Int("faults.each", 6, "faults in each history")
	parallel = flag.Int("faults.together", 4, "histories under way at one time")
	keep     = flag.String("faults.keep", "", "directory that keeps the logs of all processes, one folder for each history")
)

// Whatever strikes the replicas and etcd: registers stay linearizable, nothing takes effect under an old epoch, no two act
// for a shard at once, and no shard is left alone for longer than it must be.
func TestHistories(t *testing.T) {
	if *seeds < 1 || *each < 1 {
		t.Fatalf("%d histories of %d faults would show nothing", *seeds, *each)
	}
	all := totals{recordFault: map[schedule.Kind]int{}}
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
	t.Logf("faults by kind: %v", all.recordFault)
}

// oneHistory lets the faults of a seed strike and judges what came of it.
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
		t.Errorf("a fault did not strike: %v", err)
	}
	if err := fx.waitForWrites(); err != nil {
		t.Error(err)
	}
	pause(context.Background(), time.Second) // of work after the last fault
	h, err := fx.finish()
	if err != nil {
		t.Error(err)
	}
	verdict := history.Analyze(h)
	t.Logf("seed %d: %v", seed, verdict)
	if err := verdict.Err(minimum(shards, len(faults))); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	all.add(verdict)
}

// floor is a small part of what a loaded machine sees.
func minimum(shards, faults int) history.Minimum {
	return history.Minimum{Applied: 2 * faults, Reads: 20 * faults, Terms: shards + 1}
}

// tally adds verdicts up.
type totals struct {
	mu          sync.Mutex // guards what follows
	histories   int
	recordFault map[schedule.Kind]int
	sum         history.Report
}

func (a *totals) countFaults(faults []schedule.Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range faults {
		a.recordFault[f.Kind]++
	}
}

func (a *totals) add(v history.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.histories++
	a.sum = a.sum.Plus(v)
}
