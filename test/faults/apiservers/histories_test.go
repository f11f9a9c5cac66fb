package apiservers

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

var (
	histories = flag.Int("apiservers.histories", 1, "random histories")
	firstSeed = flag.Uint64("apiservers.first", 1, "seed of the first history; those that follow have the next numbers")
	each      = flag.Int("apiservers.each", 2, "faults in each history")
)

// TestHistories injects random faults into three machines. After each fault, exactly the healthy
// servers are published within the promised time. All other machines stay published meanwhile.
func TestHistories(t *testing.T) {
	testkit.LongTest(t, 3)
	for seed := *firstSeed; seed < *firstSeed+uint64(*histories); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Logf("reproduce with -apiservers.first=%d -apiservers.histories=1 -apiservers.each=%d", seed, *each)
			runHistory(newFixture(t), rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func runHistory(f fixture, random *rand.Rand) {
	machines := f.machines("10.99.4.1", "10.99.4.2", "10.99.4.3")
	for _, m := range machines {
		m.startSidecar()
	}
	f.waitForPublished(waitTimeout, machines...)
	f.waitForKeys(machines...)
	faults := []machineFault{serverKilled, serverStopped, serverFrozen, sidecarKilled, sidecarStopped, powerLost}
	for range *each {
		faulty := machines[random.IntN(len(machines))]
		healthy := slices.DeleteFunc(slices.Clone(machines), func(m *machine) bool { return m == faulty })
		fault := faults[random.IntN(len(faults))]
		end := f.requirePublished(healthy...)
		f.checkFault(fault, faulty, healthy...)
		f.waitForPublished(waitTimeout, machines...)
		end()
	}
	f.powerOffAll(machines)
}

// powerOffAll powers off all machines. The published endpoints remain because no sidecar runs. The
// first machine that returns removes the others.
func (f fixture) powerOffAll(machines []*machine) {
	f.Helper()
	var poweringOff sync.WaitGroup
	for _, m := range machines {
		poweringOff.Go(m.powerOff)
	}
	poweringOff.Wait()
	if has, err := published(f.Context(), f.kube); err != nil || len(has) == 0 {
		f.Errorf("after the power loss of all machines, %v are published, %v", has, err)
	}
	back := machines[0]
	if err := back.server.Start(); err != nil {
		f.Fatal(err)
	}
	back.startSidecar()
	end := f.requirePublished(back)
	f.waitForPublished(killedRemovalTime+waitTimeout, back)
	end()
}
