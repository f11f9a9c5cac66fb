package simulate

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestNext_KeepsSizeAndNeverReusesNamesOrAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Nodes:    rapid.IntRange(1, 10).Draw(t, "nodes"),
			Services: rapid.IntRange(1, 5).Draw(t, "services"),
			Pods:     rapid.IntRange(1, 30).Draw(t, "pods"),
		}
		f := newFleet(cfg)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		seen := map[string]bool{}
		for _, p := range f.pods {
			seen[p.name] = true
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			c, ok := f.next(random)
			if !ok {
				t.Fatal("a fleet with pods has no next change")
			}
			if c.verb == replace {
				if seen[c.after.name] {
					t.Fatalf("name %s used twice", c.after.name)
				}
				if c.after.service != c.before.service {
					t.Fatalf("pod of service %d replaced by one of service %d", c.before.service, c.after.service)
				}
				seen[c.after.name] = true
			} else if c.before.ready == c.after.ready {
				t.Fatalf("change %+v changes nothing", c)
			}
			f.applied(c)
			if len(f.pods) != cfg.Pods {
				t.Fatalf("%d pods, want %d", len(f.pods), cfg.Pods)
			}
		}
	})
}

func TestNext_SameSeedGivesSameHistory(t *testing.T) {
	history := func() []string {
		f := newFleet(Config{Nodes: 3, Services: 2, Pods: 9})
		random := rand.New(rand.NewPCG(7, 0))
		var names []string
		for range 50 {
			c, _ := f.next(random)
			f.applied(c)
			names = append(names, c.after.name)
		}
		return names
	}
	if diff := cmp.Diff(history(), history()); diff != "" {
		t.Errorf("two runs of one seed differ:\n%s", diff)
	}
}

func TestPodIP_DistinctForAWholeFleet(t *testing.T) {
	seen := map[string]int{}
	for n := range 254 * 4 * 256 {
		ip := podIP(n)
		if before, twice := seen[ip]; twice {
			t.Fatalf("pods %d and %d share %s", before, n, ip)
		}
		seen[ip] = n
	}
}

func TestRollOut_ReplacesAllPodsOfOneServiceAfterAnother(t *testing.T) {
	f := newFleet(Config{Nodes: 2, Services: 3, Pods: 12, Seed: 1})
	before := map[string]bool{}
	for _, p := range f.pods {
		before[p.name] = true
	}
	for i := range 12 {
		c, ok := f.rollOut(i)
		if !ok || c.before.service != i/4 || c.after.service != i/4 || !before[c.before.name] || before[c.after.name] {
			t.Errorf("change %d replaces %+v by %+v, want a first Pod of Service %d", i, c.before, c.after, i/4)
		}
		delete(before, c.before.name)
		f.applied(c)
	}
	if len(before) > 0 {
		t.Errorf("left out: %v", before)
	}
	if _, ok := newFleet(Config{}).rollOut(0); ok {
		t.Error("an empty fleet is rolled out")
	}
}
