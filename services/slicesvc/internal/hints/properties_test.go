package hints_test

import (
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// cluster is what an allocation is made from, with the CPU of each zone.
type cluster struct {
	cpu       map[string]int64
	shares    hints.Shares
	endpoints []hints.Endpoint
}

func drawCluster(t *rapid.T) cluster {
	zones := []string{"a", "b", "c", "d"}[:rapid.IntRange(0, 4).Draw(t, "zones")]
	c := cluster{cpu: map[string]int64{}}
	for _, zone := range zones {
		c.cpu[zone] = rapid.Int64Range(1, 20).Draw(t, "cpu")
	}
	c.shares = sharesOf(c.cpu)
	known := rapid.SampledFrom([]string{"", "a", "b", "c", "d", "x"})
	for i := range rapid.IntRange(0, 60).Draw(t, "endpoints") {
		c.endpoints = append(c.endpoints, hints.Endpoint{
			Zone:  known.Draw(t, "zone"),
			Slice: rapid.SampledFrom([]string{"", "s", "t"}).Draw(t, "slice"),
			Key:   fmt.Sprintf("%03d", i),
		})
	}
	if rapid.Bool().Draw(t, "hinted before") {
		for i := range c.endpoints {
			c.endpoints[i].Hint = known.Draw(t, "hint")
		}
	}
	return c
}

// allocated returns the cluster whose endpoints have these hints.
func (c cluster) allocated(zones []string) cluster {
	after := c
	after.endpoints = append([]hints.Endpoint{}, c.endpoints...)
	for i, zone := range zones {
		after.endpoints[i].Hint = zone
	}
	return after
}

// load returns the load of the endpoints of a zone, in percent of their even share of the cluster.
func (c cluster) load(zone string, counts map[string]int) float64 {
	var total int64
	for _, cpu := range c.cpu {
		total += cpu
	}
	return 100 * float64(c.cpu[zone]) / float64(total) * float64(len(c.endpoints)) / float64(counts[zone])
}

func (c cluster) hintedBefore() bool {
	for _, endpoint := range c.endpoints {
		if c.cpu[endpoint.Hint] > 0 {
			return true
		}
	}
	return false
}

func TestAllocate_AllHaveAHintOrNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		zones, verdict := hints.Allocate(c.shares, c.endpoints)
		if verdict.Hinted != (verdict.Problem == "") {
			t.Fatalf("verdict %+v contradicts itself", verdict)
		}
		if !verdict.Hinted && zones != nil || verdict.Hinted && len(zones) != len(c.endpoints) {
			t.Fatalf("verdict %+v with hints %q for %d endpoints", verdict, zones, len(c.endpoints))
		}
		for _, zone := range zones {
			if c.cpu[zone] == 0 {
				t.Fatalf("an endpoint is meant for %q, which has no nodes", zone)
			}
		}
	})
}

func TestAllocate_KeepsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		zones, _ := hints.Allocate(c.shares, c.endpoints)
		if zones == nil {
			return
		}
		bound := 120.0
		if c.hintedBefore() {
			bound = 130
		}
		counts := count(zones)
		for zone := range c.cpu {
			if load := c.load(zone, counts); load > bound+1e-9 {
				t.Fatalf("endpoints for zone %s are loaded at %.2f percent, above %.0f: %v", zone, load, bound, counts)
			}
		}
	})
}

// The number of changed hints is at most the number of endpoints that zones lack.
func TestAllocate_ChangesTheFewestHints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		zones, _ := hints.Allocate(c.shares, c.endpoints)
		if zones == nil || !c.hintedBefore() {
			return
		}
		kept := map[string]int{}
		for _, endpoint := range c.endpoints {
			if c.cpu[endpoint.Hint] > 0 {
				kept[endpoint.Hint]++
			}
		}
		lacking := 0
		for zone := range c.cpu {
			minimum := 0
			for minimum <= len(c.endpoints) && c.load(zone, map[string]int{zone: minimum}) > 120+1e-9 {
				minimum++
			}
			lacking += max(minimum-kept[zone], 0)
		}
		changed := 0
		for i, endpoint := range c.endpoints {
			if c.cpu[endpoint.Hint] > 0 && zones[i] != endpoint.Hint {
				changed++
			}
		}
		if changed > lacking {
			t.Fatalf("%d hints changed, but zones lack only %d endpoints", changed, lacking)
		}
	})
}

func TestAllocate_AgainChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		zones, verdict := hints.Allocate(c.shares, c.endpoints)
		if zones == nil {
			return
		}
		again, same := hints.Allocate(c.shares, c.allocated(zones).endpoints)
		if diff := gocmp.Diff(zones, again); diff != "" || verdict != same {
			t.Fatalf("allocated once more, %+v and then %+v:\n%s", verdict, same, diff)
		}
	})
}

func TestAllocate_OrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		byKey := func(endpoints []hints.Endpoint) map[string]string {
			zones, _ := hints.Allocate(c.shares, endpoints)
			hints := map[string]string{}
			for i, zone := range zones {
				hints[endpoints[i].Key] = zone
			}
			return hints
		}
		shuffled := rapid.Permutation(c.endpoints).Draw(t, "order")
		if diff := gocmp.Diff(byKey(c.endpoints), byKey(shuffled)); diff != "" {
			t.Fatalf("another order gives other hints:\n%s", diff)
		}
	})
}

func TestAllocate_ChangesNoInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		before := append([]hints.Endpoint{}, c.endpoints...)
		hints.Allocate(c.shares, c.endpoints)
		if diff := gocmp.Diff(before, append([]hints.Endpoint{}, c.endpoints...)); diff != "" {
			t.Fatalf("the endpoints changed:\n%s", diff)
		}
	})
}

// An endpoint whose readiness flips must not make hints come and go.
func TestAllocate_OneEndpointMoreOrLessKeepsHints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.IntRange(10, 40).Draw(t, "a"), rapid.IntRange(10, 40).Draw(t, "b")
		c := cluster{cpu: map[string]int64{"a": int64(a), "b": int64(b)}}
		c.shares = sharesOf(c.cpu)
		c.endpoints = endpointsIn(append(repeated("a", a), repeated("b", b)...)...)
		zones, _ := hints.Allocate(c.shares, c.endpoints)
		c = c.allocated(zones)
		c.endpoints = c.endpoints[:len(c.endpoints)-1]
		fewer, _ := hints.Allocate(c.shares, c.endpoints)
		if diff := gocmp.Diff(zones[:len(c.endpoints)], fewer); diff != "" {
			t.Fatalf("one endpoint less changes others:\n%s", diff)
		}
	})
}
