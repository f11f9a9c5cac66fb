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
			oneHistory(newPlane(t), rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

// trouble is what can befall a machine, and how it ends.
type trouble struct {
	name         string
	within       time.Duration
	begin, relax func(*machine) error
}

func troubles() []trouble {
	revive := func(m *machine) error { return m.server.Start() }
	return []trouble{{
		name: "server killed", within: deadWithin,
		begin: func(m *machine) error { m.server.Kill(); return nil }, relax: revive,
	}, {
		name: "server stopped", within: hungWithin,
		begin: func(m *machine) error { return m.server.Stop() }, relax: revive,
	}, {
		name: "server frozen", within: hungWithin,
		begin: func(m *machine) error { return m.server.Freeze() },
		relax: func(m *machine) error { return m.server.Thaw() },
	}, {
		name: "sidecar killed", within: deadWithin,
		begin: func(m *machine) error { m.kill(); return nil },
		relax: func(m *machine) error { m.attend(); return nil },
	}, {
		name: "sidecar stopped", within: withdrawnWithin,
		begin: func(m *machine) error { return m.stop() },
		relax: func(m *machine) error { m.attend(); return nil },
	}, {
		name: "power lost", within: deadWithin,
		begin: func(m *machine) error { m.lose(); return nil },
		relax: func(m *machine) error {
			err := m.server.Start()
			m.attend()
			return err
		},
	}}
}

func oneHistory(p plane, random *rand.Rand) {
	machines := p.machines("10.99.4.1", "10.99.4.2", "10.99.4.3")
	for _, m := range machines {
		m.attend()
	}
	p.becomes(soon, machines...)
	for range *each {
		ill := machines[random.IntN(len(machines))]
		well := slices.DeleteFunc(slices.Clone(machines), func(m *machine) bool { return m == ill })
		befallen := troubles()[random.IntN(len(troubles()))]
		end := p.stays(well...)
		if err := befallen.begin(ill); err != nil {
			p.Fatal(err)
		}
		p.out(befallen.name+" of "+ill.address, befallen.within, well...)
		if err := befallen.relax(ill); err != nil {
			p.Fatal(err)
		}
		p.becomes(soon, machines...)
		end()
	}
	p.allAtOnce(machines)
}

// allAtOnce lets all machines lose their power. Nobody is left to write, so what was published stays; whoever comes back
// first takes the others out.
func (p plane) allAtOnce(machines []*machine) {
	p.Helper()
	var losing sync.WaitGroup
	for _, m := range machines {
		losing.Go(m.lose)
	}
	losing.Wait()
	if has, err := published(p.Context(), p.kube); err != nil || len(has) == 0 {
		p.Errorf("all servers were killed, and published are %v, %v", has, err)
	}
	back := machines[0]
	if err := back.server.Start(); err != nil {
		p.Fatal(err)
	}
	back.attend()
	end := p.stays(back)
	p.becomes(deadWithin+soon, back)
	end()
}
