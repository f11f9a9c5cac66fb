package allocation_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

func leakedPort() *allocation.Index {
	return load(portSettings(), allocation.Snapshot{Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200", 11)}})
}

// pass audits, sights and audits again.
func pass(l *allocation.Index, after time.Duration) {
	l.Compare(start.Add(after))
	l.Observe(start.Add(after))
	l.Compare(start.Add(after))
}

func TestRipening_LeakIsOpenAfterItsTimeAndThreeSightings(t *testing.T) {
	l := leakedPort()
	for _, after := range []time.Duration{0, 20 * time.Second, 40 * time.Second, 60 * time.Second, 65*time.Second - 1} {
		pass(l, after)
		expect(t, l, "? leaked 111:")
	}
	pass(l, 65*time.Second)
	expect(t, l, "leaked 111: clear")
}

func TestRipening_TimeWithoutSightingsIsNotEnough(t *testing.T) {
	l := leakedPort()
	pass(l, 0)
	pass(l, time.Hour)
	l.Compare(start.Add(2 * time.Hour)) // a pass that met a conflict
	expect(t, l, "? leaked 111:")
	pass(l, 3*time.Hour)
	expect(t, l, "leaked 111: clear")
}

func TestRipening_SightingsThatAreTooNearCountOnce(t *testing.T) {
	l := leakedPort()
	for i := range 100 {
		pass(l, time.Duration(i)*time.Second/5) // a hundred passes within 20 seconds
	}
	found, _ := l.Finding("findings/leaked.node-ports.111")
	if found.Observations != 1 {
		t.Errorf("%d sightings, want 1", found.Observations)
	}
	if want := start.Add(65 * time.Second); !found.GraceEnds.Equal(want) {
		t.Errorf("ripe at %s, want %s", found.GraceEnds, want)
	}
}

func TestRipening_BeginsAnew(t *testing.T) {
	cases := map[string]func(l *allocation.Index){
		"a gap":                        func(l *allocation.Index) { l.RecordGap() },
		"a service that came and went": func(l *allocation.Index) { l.PutService(nodePorts("a", 111)); l.DeleteService(key("a")) },
		"a bit that was clear between": func(l *allocation.Index) { l.PutBitmap(bitmap(allocation.NodePorts, "100-200")); l.PutBitmap(leak()) },
		"a range that was another one": func(l *allocation.Index) {
			l.PutBitmap(bitmap(allocation.NodePorts, "101-200", 10))
			l.PutBitmap(leak())
		},
		"a value that was unread": func(l *allocation.Index) {
			l.PutBitmap(allocation.Bitmap{Store: allocation.NodePorts, Problem: "odd"})
			l.PutBitmap(leak())
		},
		"a key that was missing": func(l *allocation.Index) {
			l.PutBitmap(allocation.Bitmap{Store: allocation.NodePorts, Missing: true})
			l.PutBitmap(leak())
		},
		"a service that used it before": func(l *allocation.Index) {
			l.PutService(nodePorts("a", 111))
			l.PutService(nodePorts("a", 112))
			l.DeleteService(key("a"))
		},
	}
	for name, contradict := range cases {
		t.Run(name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				l := leakedPort()
				pass(l, 0)
				pass(l, 20*time.Second)
				pass(l, 40*time.Second)
				if open {
					pass(l, 65*time.Second)
					expect(t, l, "leaked 111: clear")
				}
				contradict(l)
				pass(l, 70*time.Second)
				expect(t, l, "? leaked 111:")
				pass(l, 134*time.Second)
				expect(t, l, "? leaked 111:")
				pass(l, 155*time.Second)
				expect(t, l, "leaked 111: clear")
			}
		})
	}
}

func TestRipening_WhatWasDoubtedBeginsAnew(t *testing.T) {
	l := load(portSettings(), allocation.Snapshot{
		Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200")}, Services: []allocation.Service{nodePorts("a", 111)},
	})
	pass(l, 0)
	pass(l, 250*time.Millisecond)
	expect(t, l, "not-allocated 111 a: set")
	l.RestartGracePeriod("findings/not-allocated.node-ports.111")
	l.RestartGracePeriod("findings/not-allocated.node-ports.112") // of which nothing is known
	pass(l, 300*time.Millisecond)
	expect(t, l, "? not-allocated 111 a:")
	pass(l, 549*time.Millisecond)
	expect(t, l, "? not-allocated 111 a:")
	if next := l.NextDue(); !next.Equal(start.Add(550 * time.Millisecond)) {
		t.Errorf("next is %s, want %s", next, start.Add(550*time.Millisecond))
	}
	pass(l, 550*time.Millisecond)
	expect(t, l, "not-allocated 111 a: set")
}

func leak() allocation.Bitmap { return bitmap(allocation.NodePorts, "100-200", 11) }

func TestRipening_OtherPortsDoNotDisturb(t *testing.T) {
	l := leakedPort()
	for after := time.Duration(0); after < 66*time.Second; after += time.Second {
		// Another port is taken and given back every second, as on a busy cluster.
		l.PutBitmap(bitmap(allocation.NodePorts, "100-200", 11, 12))
		l.PutService(nodePorts("a", 112))
		l.Compare(start.Add(after))
		l.DeleteService(key("a"))
		l.PutBitmap(leak())
		pass(l, after)
	}
	expect(t, l, "leaked 111: clear")
}

func TestRipening_OrphanOfAnotherLifeBeginsAnew(t *testing.T) {
	cases := map[string]func(l *allocation.Index){
		"another object": func(l *allocation.Index) {
			l.PutIPAddress(with(object("10.0.1.1", "gone"), func(a *allocation.IPAddress) { a.UID = "another" }))
		},
		"deleted and made again": func(l *allocation.Index) {
			l.DeleteIPAddress("10.0.1.1")
			l.PutIPAddress(object("10.0.1.1", "gone"))
		},
		"its service was there for a moment": func(l *allocation.Index) {
			l.PutService(service("gone"))
			l.DeleteService(key("gone"))
		},
		"a service used it for a moment": func(l *allocation.Index) {
			l.PutService(service("a", "10.0.1.1"))
			l.DeleteService(key("a"))
		},
	}
	for name, contradict := range cases {
		t.Run(name, func(t *testing.T) {
			l := load(addressSettings(), allocation.Snapshot{
				CIDRs: []allocation.CIDR{defaultCIDR()}, IPAddresses: []allocation.IPAddress{object("10.0.1.1", "gone")},
			})
			now := ripen(l, start)
			expect(t, l, "orphan 10.0.1.1: delete")
			contradict(l)
			l.Compare(now)
			expect(t, l, "? orphan 10.0.1.1:")
			ripen(l, now)
			expect(t, l, "orphan 10.0.1.1: delete")
		})
	}
}

func TestRipening_BusyParentDoesNotKeepALeakFromRipening(t *testing.T) {
	l := load(addressSettings(), allocation.Snapshot{
		CIDRs:       []allocation.CIDR{defaultCIDR()},
		Services:    []allocation.Service{service("a", "10.0.1.1")},
		IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a"), object("10.0.1.2", "a")},
	})
	for after := time.Duration(0); after <= 66*time.Second; after += time.Second {
		l.PutService(service("a", "10.0.1.1")) // its status is written every second
		pass(l, after)
	}
	expect(t, l, "leaked 10.0.1.2: delete")
}

func TestRipening_WhatIsMissingWaitsForTheOtherWatchOnly(t *testing.T) {
	l := load(addressSettings(), allocation.Snapshot{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{service("a", "10.0.1.1")},
	})
	l.Compare(start)
	expect(t, l, "? not-allocated 10.0.1.1 a:")
	if want := start.Add(250 * time.Millisecond); !l.NextDue().Equal(want) {
		t.Errorf("next at %s, want %s", l.NextDue(), want)
	}
	l.PutIPAddress(object("10.0.1.1", "a"))
	ended := l.Compare(start.Add(time.Millisecond)).Ended
	if diff := cmp.Diff([]string{"? not-allocated 10.0.1.1 a:"}, briefly(ended)); diff != "" {
		t.Errorf("ended differs (-want +got):\n%s", diff)
	}
	l.DeleteIPAddress("10.0.1.1")
	l.Compare(start.Add(time.Second))
	l.Compare(start.Add(1250 * time.Millisecond))
	expect(t, l, "not-allocated 10.0.1.1 a: create")
}

func TestLedger_NextNeverAsksForTheSameAuditAgain(t *testing.T) {
	l := leakedPort()
	now, audits := start, 0
	for ; now.Before(start.Add(10 * time.Minute)); audits++ {
		l.Compare(now)
		next := l.NextDue()
		if !next.After(now) {
			t.Fatalf("at %s the ledger asks for an audit at %s", now, next)
		}
		now = next
	}
	if audits > 700 {
		t.Errorf("%d audits in ten minutes without a sighting", audits)
	}
}

func TestLedger_FollowingNextRipensAtTheEarliest(t *testing.T) {
	l := leakedPort()
	now := start
	for !l.NextDue().IsZero() || now.Equal(start) {
		pass(l, now.Sub(start))
		if next := l.NextDue(); next.After(now) {
			now = next
		}
	}
	expect(t, l, "leaked 111: clear")
	if want := start.Add(65 * time.Second); !now.Equal(want) {
		t.Errorf("ripe at %s, want %s", now, want)
	}
}

func TestLedger_DeltaTellsEachStateOnce(t *testing.T) {
	l := leakedPort()
	var seen []string
	note := func(after time.Duration) {
		delta := l.Compare(start.Add(after))
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
		l.Observe(start.Add(after))
		note(after)
	}
	l.PutBitmap(bitmap(allocation.NodePorts, "100-200"))
	note(70 * time.Second)
	want := []string{
		"+ ? leaked 111:", // found
		"+ ? leaked 111:", // and sighted three times
		"+ ? leaked 111:",
		"+ ? leaked 111:",
		"+ leaked 111: clear",
		"- leaked 111: clear",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("deltas differ (-want +got):\n%s", diff)
	}
}
