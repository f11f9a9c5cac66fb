package apiservers

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

var (
	histories = flag.Int("apiservers.histories", 1, "random histories")
	firstSeed = flag.Uint64("apiservers.first", 1, "seed of the first history; those that follow have the next numbers")
	each      = flag.Int("apiservers.each", 2, "faults in each history")
)

// TestHistories lets random faults strike three machines. After each, exactly the servers that are well are published within
// what is promised; meanwhile a machine that nothing strikes is always published, and never is there nobody.
func TestHistories(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+uint64(*histories); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Logf("reproduce with -apiservers.first=%d -apiservers.histories=1 -apiservers.each=%d", seed, *each)
			runHistory(newFixture(t), rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

// trouble is what can befall a machine, and how it ends.
type machineFault struct {
	name         string
	within       time.Duration
	inject, undo func(*machine) error
}

func machineFaults() []machineFault {
	revive := func(m *machine) error { return m.server.Start() }
	return []machineFault{{
		name: "server killed", within: killedRemovalTime,
		inject: func(m *machine) error { m.server.Kill(); return nil }, undo: revive,
	}, {
		name: "server stopped", within: frozenRemovalTime,
		inject: func(m *machine) error { return m.server.Stop() }, undo: revive,
	}, {
		name: "server frozen", within: frozenRemovalTime,
		inject: func(m *machine) error { return m.server.Freeze() },
		undo:   func(m *machine) error { return m.server.Thaw() },
	}, {
		name: "sidecar killed", within: killedRemovalTime,
		inject: func(m *machine) error { m.kill(); return nil },
		undo:   func(m *machine) error { m.startSidecar(); return nil },
	}, {
		name: "sidecar stopped", within: gracefulRemovalTime,
		inject: func(m *machine) error { return m.stop() },
		undo:   func(m *machine) error { m.startSidecar(); return nil },
	}, {
		name: "power lost", within: killedRemovalTime,
		inject: func(m *machine) error { m.powerOff(); return nil },
		undo: func(m *machine) error {
			err := m.server.Start()
			m.startSidecar()
			return err
		},
	}}
}

func runHistory(f fixture, random *rand.Rand) {
	machines := f.machines("10.99.4.1", "10.99.4.2", "10.99.4.3")
	for _, m := range machines {
		m.startSidecar()
	}
	f.waitForPublished(waitTimeout, machines...)
	for range *each {
		faulty := machines[random.IntN(len(machines))]
		healthy := slices.DeleteFunc(slices.Clone(machines), func(m *machine) bool { return m == faulty })
		fault := machineFaults()[random.IntN(len(machineFaults()))]
		end := f.requirePublished(healthy...)
		if err := fault.inject(faulty); err != nil {
			f.Fatal(err)
		}
		f.checkRemoval(fault.name+" of "+faulty.address, fault.within, healthy...)
		if err := fault.undo(faulty); err != nil {
			f.Fatal(err)
		}
		f.waitForPublished(waitTimeout, machines...)
		end()
	}
	f.powerOffAll(machines)
}

// allAtOnce lets all machines lose their power. Nobody is left to write, so what was published stays; whoever comes back
// first takes the others out.
func (f fixture) powerOffAll(machines []*machine) {
	f.Helper()
	var poweringOff sync.WaitGroup
	for _, m := range machines {
		poweringOff.Go(m.powerOff)
	}
	poweringOff.Wait()
	if has, err := published(f.Context(), f.kube); err != nil || len(has) == 0 {
		f.Errorf("all servers were killed, and published are %v, %v", has, err)
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
