package allocation_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

func leakedPort() *allocation.Index {
	return load(portSettings(), objects{Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200", 11)}})
}

// pass compares, observes and compares again.
func pass(x *allocation.Index, after time.Duration) {
	x.Compare(start.Add(after))
	x.Observe(start.Add(after))
	x.Compare(start.Add(after))
}

func TestGracePeriod_LeakIsOpenAfter65SecondsAndThreeObservations(t *testing.T) {
	x := leakedPort()
	for _, after := range []time.Duration{0, 20 * time.Second, 40 * time.Second, 60 * time.Second, 65*time.Second - 1} {
		pass(x, after)
		expect(t, x, "? leaked 111:")
	}
	pass(x, 65*time.Second)
	expect(t, x, "leaked 111: clear")
}

func TestGracePeriod_TimeWithoutObservationsIsNotEnough(t *testing.T) {
	x := leakedPort()
	pass(x, 0)
	pass(x, time.Hour)
	x.Compare(start.Add(2 * time.Hour)) // a pass that met a conflict
	expect(t, x, "? leaked 111:")
	pass(x, 3*time.Hour)
	expect(t, x, "leaked 111: clear")
}

func TestGracePeriod_ObservationsWithinTheIntervalCountOnce(t *testing.T) {
	x := leakedPort()
	for i := range 100 {
		pass(x, time.Duration(i)*time.Second/5) // a hundred passes within 20 seconds
	}
	found, _ := x.Finding("findings/leaked.node-ports.111")
	if found.Observations != 1 {
		t.Errorf("%d observations, want 1", found.Observations)
	}
	if want := start.Add(65 * time.Second); !found.GraceEnds.Equal(want) {
		t.Errorf("the grace period ends at %s, want %s", found.GraceEnds, want)
	}
}

func TestGracePeriod_Restarts(t *testing.T) {
	cases := map[string]func(x *allocation.Index){
		"a gap":                        func(x *allocation.Index) { x.RecordGap() },
		"a service that came and went": func(x *allocation.Index) { x.PutService(nodePorts("a", 111)); x.DeleteService(key("a")) },
		"a bit that was clear between": func(x *allocation.Index) { x.PutBitmap(bitmap(allocation.NodePorts, "100-200")); x.PutBitmap(leak()) },
		"a range that was another one": func(x *allocation.Index) {
			x.PutBitmap(bitmap(allocation.NodePorts, "101-200", 10))
			x.PutBitmap(leak())
		},
		"a value that was unread": func(x *allocation.Index) {
			x.PutBitmap(allocation.Bitmap{Store: allocation.NodePorts, Problem: "odd"})
			x.PutBitmap(leak())
		},
		"a key that was missing": func(x *allocation.Index) {
			x.PutBitmap(allocation.Bitmap{Store: allocation.NodePorts, Missing: true})
			x.PutBitmap(leak())
		},
		"a service that used it before": func(x *allocation.Index) {
			x.PutService(nodePorts("a", 111))
			x.PutService(nodePorts("a", 112))
			x.DeleteService(key("a"))
		},
	}
	for name, contradict := range cases {
		t.Run(name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				x := leakedPort()
				pass(x, 0)
				pass(x, 20*time.Second)
				pass(x, 40*time.Second)
				if open {
					pass(x, 65*time.Second)
					expect(t, x, "leaked 111: clear")
				}
				contradict(x)
				pass(x, 70*time.Second)
				expect(t, x, "? leaked 111:")
				pass(x, 134*time.Second)
				expect(t, x, "? leaked 111:")
				pass(x, 155*time.Second)
				expect(t, x, "leaked 111: clear")
			}
		})
	}
}

func TestGracePeriod_RestartsOnRequest(t *testing.T) {
	x := load(portSettings(), objects{
		Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200")}, Services: []allocation.Service{nodePorts("a", 111)},
	})
	pass(x, 0)
	pass(x, 250*time.Millisecond)
	expect(t, x, "not-allocated 111 a: set")
	x.RestartGracePeriod("findings/not-allocated.node-ports.111")
	x.RestartGracePeriod("findings/not-allocated.node-ports.112") // of which nothing is known
	pass(x, 300*time.Millisecond)
	expect(t, x, "? not-allocated 111 a:")
	pass(x, 549*time.Millisecond)
	expect(t, x, "? not-allocated 111 a:")
	if next := x.NextDue(); !next.Equal(start.Add(550 * time.Millisecond)) {
		t.Errorf("next is %s, want %s", next, start.Add(550*time.Millisecond))
	}
	pass(x, 550*time.Millisecond)
	expect(t, x, "not-allocated 111 a: set")
}

func leak() allocation.Bitmap { return bitmap(allocation.NodePorts, "100-200", 11) }

func TestGracePeriod_OtherPortsDoNotRestartIt(t *testing.T) {
	x := leakedPort()
	for after := time.Duration(0); after < 66*time.Second; after += time.Second {
		// Another port is taken and given back every second, as on a busy cluster.
		x.PutBitmap(bitmap(allocation.NodePorts, "100-200", 11, 12))
		x.PutService(nodePorts("a", 112))
		x.Compare(start.Add(after))
		x.DeleteService(key("a"))
		x.PutBitmap(leak())
		pass(x, after)
	}
	expect(t, x, "leaked 111: clear")
}

func TestGracePeriod_RestartsForAnotherObjectOfTheSameName(t *testing.T) {
	cases := map[string]func(x *allocation.Index){
		"another object": func(x *allocation.Index) {
			x.PutIPAddress(with(object("10.0.1.1", "gone"), func(a *allocation.IPAddress) { a.UID = "another" }))
		},
		"deleted and made again": func(x *allocation.Index) {
			x.DeleteIPAddress("10.0.1.1")
			x.PutIPAddress(object("10.0.1.1", "gone"))
		},
		"its service existed for a moment": func(x *allocation.Index) {
			x.PutService(service("gone"))
			x.DeleteService(key("gone"))
		},
		"a service used it for a moment": func(x *allocation.Index) {
			x.PutService(service("a", "10.0.1.1"))
			x.DeleteService(key("a"))
		},
	}
	for name, contradict := range cases {
		t.Run(name, func(t *testing.T) {
			x := load(addressSettings(), objects{
				CIDRs: []allocation.CIDR{defaultCIDR()}, IPAddresses: []allocation.IPAddress{object("10.0.1.1", "gone")},
			})
			now := runPasses(x, start)
			expect(t, x, "orphan 10.0.1.1: delete")
			contradict(x)
			x.Compare(now)
			expect(t, x, "? orphan 10.0.1.1:")
			runPasses(x, now)
			expect(t, x, "orphan 10.0.1.1: delete")
		})
	}
}

func TestGracePeriod_UpdatesOfTheParentDoNotRestartIt(t *testing.T) {
	x := load(addressSettings(), objects{
		CIDRs:       []allocation.CIDR{defaultCIDR()},
		Services:    []allocation.Service{service("a", "10.0.1.1")},
		IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a"), object("10.0.1.2", "a")},
	})
	for after := time.Duration(0); after <= 66*time.Second; after += time.Second {
		x.PutService(service("a", "10.0.1.1")) // its status is written every second
		pass(x, after)
	}
	expect(t, x, "leaked 10.0.1.2: delete")
}

func TestGracePeriod_NotAllocatedWaitsForTheOtherWatchOnly(t *testing.T) {
	x := load(addressSettings(), objects{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{service("a", "10.0.1.1")},
	})
	x.Compare(start)
	expect(t, x, "? not-allocated 10.0.1.1 a:")
	if want := start.Add(250 * time.Millisecond); !x.NextDue().Equal(want) {
		t.Errorf("next at %s, want %s", x.NextDue(), want)
	}
	x.PutIPAddress(object("10.0.1.1", "a"))
	ended := x.Compare(start.Add(time.Millisecond)).Ended
	if diff := cmp.Diff([]string{"? not-allocated 10.0.1.1 a:"}, briefly(ended)); diff != "" {
		t.Errorf("ended differs (-want +got):\n%s", diff)
	}
	x.DeleteIPAddress("10.0.1.1")
	x.Compare(start.Add(time.Second))
	x.Compare(start.Add(1250 * time.Millisecond))
	expect(t, x, "not-allocated 10.0.1.1 a: create")
}

func TestIndex_NextDueIsAfterTheComparison(t *testing.T) {
	x := leakedPort()
	now, comparisons := start, 0
	for ; now.Before(start.Add(10 * time.Minute)); comparisons++ {
		x.Compare(now)
		next := x.NextDue()
		if !next.After(now) {
			t.Fatalf("at %s the index asks for a comparison at %s", now, next)
		}
		now = next
	}
	if comparisons > 700 {
		t.Errorf("%d comparisons in ten minutes without an observation", comparisons)
	}
}

func TestIndex_FollowingNextDueOpensAtTheEarliest(t *testing.T) {
	x := leakedPort()
	now := start
	for !x.NextDue().IsZero() || now.Equal(start) {
		pass(x, now.Sub(start))
		if next := x.NextDue(); next.After(now) {
			now = next
		}
	}
	expect(t, x, "leaked 111: clear")
	if want := start.Add(65 * time.Second); !now.Equal(want) {
		t.Errorf("the grace period ends at %s, want %s", now, want)
	}
}

func TestIndex_DeltaHasEachChangeOnce(t *testing.T) {
	x := leakedPort()
	var seen []string
	note := func(after time.Duration) {
		delta := x.Compare(start.Add(after))
		for _, text := range briefly(delta.Changed) {
			seen = append(seen, "+ "+text)
		}
		for _, text := range briefly(delta.Ended) {
			seen = append(seen, "- "+text)
		}
	}
	note(0)
	note(time.Second)
	for _, seconds := range []int{2, 22, 42, 66, 67, 68} {
		after := time.Duration(seconds) * time.Second
		x.Observe(start.Add(after))
		note(after)
	}
	x.PutBitmap(bitmap(allocation.NodePorts, "100-200"))
	note(70 * time.Second)
	want := []string{
		"+ ? leaked 111:", // found
		"+ ? leaked 111:", // and observed three times
		"+ ? leaked 111:",
		"+ ? leaked 111:",
		"+ leaked 111: clear",
		"- leaked 111: clear",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("deltas differ (-want +got):\n%s", diff)
	}
}
