package allocation_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// with returns a modified copy of an object.
func with(a allocation.IPAddress, change func(*allocation.IPAddress)) allocation.IPAddress {
	change(&a)
	return a
}

func TestIndex_AddressesInOrderGiveNothing(t *testing.T) {
	cases := map[string]objects{
		"single-stack": {
			Services:    []allocation.Service{service("a", "10.0.1.1")},
			IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a")},
		},
		"dual-stack": {
			Services:    []allocation.Service{service("a", "10.0.1.1", "2001:db8::10")},
			IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a"), object("2001:db8::10", "a")},
		},
		"another servicecidr": {
			CIDRs:       []allocation.CIDR{{Name: "more", Prefixes: []string{"192.168.0.0/24"}}},
			Services:    []allocation.Service{service("a", "192.168.0.1")},
			IPAddresses: []allocation.IPAddress{object("192.168.0.1", "a")},
		},
		"the last address of an IPv6 prefix": {
			Services:    []allocation.Service{service("a", "2001:db8::ffff:ffff:ffff:ffff")},
			IPAddresses: []allocation.IPAddress{object("2001:db8::ffff:ffff:ffff:ffff", "a")},
		},
		"headless": {Services: []allocation.Service{service("a", "None")}},
		"a gateway's": {
			IPAddresses: []allocation.IPAddress{with(object("10.0.1.9", "g"), func(a *allocation.IPAddress) {
				a.ManagedBy = "gateways.example.com"
				a.Parent = allocation.Parent{Group: "gateway.networking.k8s.io", Resource: "gateways", Namespace: "bar", Name: "g"}
			})},
		},
		"no label and no service": {
			IPAddresses: []allocation.IPAddress{with(object("10.0.1.9", "g"), func(a *allocation.IPAddress) {
				a.ManagedBy, a.Parent = "", allocation.Parent{Group: "example.com", Resource: "things", Name: "g"}
			})},
		},
		"another manager's object that is being deleted": {
			IPAddresses: []allocation.IPAddress{with(object("10.0.1.1", "b"), func(a *allocation.IPAddress) { a.Deleting, a.ManagedBy = true, "else" })},
		},
		"an ExternalName service that still names its address": {
			Services: []allocation.Service{{
				Key: key("a"), UID: "uid-a", Type: allocation.ExternalName, ClusterIPs: []string{"10.0.1.1"}, Created: birth,
			}},
			IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a")},
		},
	}
	for name, all := range cases {
		t.Run(name, func(t *testing.T) {
			all.CIDRs = append(all.CIDRs, defaultCIDR())
			x := load(addressSettings(), all)
			runPasses(x, start)
			expect(t, x)
		})
	}
}

func TestIndex_AddressesThatAreWrong(t *testing.T) {
	cases := map[string]struct {
		all  objects
		want []string
	}{
		"missing, both families": {
			all:  objects{Services: []allocation.Service{service("a", "10.0.1.1", "2001:db8::10")}},
			want: []string{"not-allocated 10.0.1.1 a: create", "not-allocated 2001:db8::10 a: create"},
		},
		"in the name of a service that does not exist": {
			all: objects{
				Services:    []allocation.Service{service("a", "10.0.1.1")},
				IPAddresses: []allocation.IPAddress{object("10.0.1.1", "gone")},
			},
			want: []string{"wrong-reference 10.0.1.1 a: delete create"},
		},
		"in the name of a service that uses another": {
			all: objects{
				Services:    []allocation.Service{service("a", "10.0.1.1"), service("b", "10.0.1.2")},
				IPAddresses: []allocation.IPAddress{object("10.0.1.1", "b"), object("10.0.1.2", "b")},
			},
			want: []string{"wrong-reference 10.0.1.1 a: delete create"},
		},
		"in the name of something else": {
			all: objects{
				Services: []allocation.Service{service("a", "10.0.1.1")},
				IPAddresses: []allocation.IPAddress{with(object("10.0.1.1", "a"), func(a *allocation.IPAddress) {
					a.Parent.Group = "example.com"
				})},
			},
			want: []string{"wrong-reference 10.0.1.1 a:"},
		},
		"the allocator's, without a parent": {
			all: objects{
				IPAddresses: []allocation.IPAddress{with(object("10.0.1.1", ""), func(a *allocation.IPAddress) {
					a.Parent = allocation.Parent{}
				})},
			},
			want: []string{"wrong-reference 10.0.1.1:"},
		},
		"out of range, and the other family in it": {
			all: objects{
				Services:    []allocation.Service{service("a", "192.168.1.1", "2001:db8::10")},
				IPAddresses: []allocation.IPAddress{object("192.168.1.1", "a"), object("2001:db8::10", "a")},
			},
			want: []string{"out-of-range 192.168.1.1 a:"},
		},
		"the network's address, the broadcast, the subnet's": {
			all: objects{Services: []allocation.Service{
				service("a", "10.0.0.0"), service("b", "10.0.255.255"), service("c", "2001:db8::"),
			}},
			want: []string{"out-of-range 10.0.0.0 a:", "out-of-range 10.0.255.255 b:", "out-of-range 2001:db8:: c:"},
		},
		"left over after its service": {
			all:  objects{IPAddresses: []allocation.IPAddress{object("10.0.255.255", "gone")}},
			want: []string{"orphan 10.0.255.255: delete"},
		},
		"two for one service": {
			all: objects{
				Services:    []allocation.Service{service("a", "10.0.1.1")},
				IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a"), object("10.0.1.2", "a")},
			},
			want: []string{"leaked 10.0.1.2: delete"},
		},
		"of a service that became ExternalName": {
			all: objects{
				Services:    []allocation.Service{{Key: key("a"), UID: "uid-a", Type: allocation.ExternalName}},
				IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a")},
			},
			want: []string{"leaked 10.0.1.1: delete"},
		},
		"two services, the object names the younger": {
			all: objects{
				Services:    []allocation.Service{service("a", "10.0.1.1"), service("b", "10.0.1.1")},
				IPAddresses: []allocation.IPAddress{object("10.0.1.1", "b")},
			},
			want: []string{"duplicate-owner 10.0.1.1 b a:"},
		},
		"two services and no object": {
			all:  objects{Services: []allocation.Service{service("a", "10.0.1.1"), service("b", "10.0.1.1")}},
			want: []string{"duplicate-owner 10.0.1.1 a b:", "not-allocated 10.0.1.1 a b: create (ask)"},
		},
		"two services, and the object is a third one's": {
			all: objects{
				Services:    []allocation.Service{service("a", "10.0.1.1"), service("b", "10.0.1.1")},
				IPAddresses: []allocation.IPAddress{object("10.0.1.1", "c")},
			},
			want: []string{"duplicate-owner 10.0.1.1 a b:", "wrong-reference 10.0.1.1 a b: delete create (ask)"},
		},
		"without labels, with the other family's": {
			all: objects{
				Services: []allocation.Service{service("a", "10.0.1.1"), service("b", "10.0.1.2")},
				IPAddresses: []allocation.IPAddress{
					with(object("10.0.1.1", "a"), func(a *allocation.IPAddress) { a.ManagedBy, a.Family = "", "" }),
					with(object("10.0.1.2", "b"), func(a *allocation.IPAddress) { a.Family = allocation.FamilyIPv6 }),
				},
			},
			want: []string{"wrong-labels 10.0.1.1 a: relabel", "wrong-labels 10.0.1.2 b: relabel"},
		},
		"labelled as another manager's": {
			all: objects{
				Services: []allocation.Service{service("a", "10.0.1.1"), service("b", "10.0.1.2")},
				IPAddresses: []allocation.IPAddress{
					with(object("10.0.1.1", "a"), func(a *allocation.IPAddress) { a.ManagedBy = "else" }),
					with(object("10.0.1.2", "c"), func(a *allocation.IPAddress) { a.ManagedBy = "else" }),
				},
			},
			want: []string{"wrong-labels 10.0.1.1 a:", "wrong-reference 10.0.1.2 b:"},
		},
		"of an absent service, without the allocator's label": {
			all: objects{
				IPAddresses: []allocation.IPAddress{with(object("10.0.1.1", "gone"), func(a *allocation.IPAddress) { a.ManagedBy = "" })},
			},
			want: []string{"orphan 10.0.1.1:"},
		},
		"no address at all": {
			all:  objects{Services: []allocation.Service{service("a", "10.0.1.300"), service("b", "fe80::1%eth0")}},
			want: []string{"invalid bar/a a:", "invalid bar/b b:"},
		},
		"addresses that kube-apiserver does not find by their texts": {
			all: objects{
				Services: []allocation.Service{
					service("a", "010.000.001.001"), service("b", "2001:db8:0::10"), service("c", "::ffff:10.0.1.3"), service("d", "10.0.01.4"),
				},
				IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a"), object("2001:db8::10", "b"), object("10.0.1.3", "c")},
			},
			want: []string{"invalid bar/a a:", "invalid bar/b b:", "invalid bar/c c:", "invalid bar/d d:", "not-allocated 10.0.1.4 d: create"},
		},
		"objects that finalizers keep": {
			all: objects{
				Services: []allocation.Service{service("a", "10.0.1.1"), service("b")},
				IPAddresses: []allocation.IPAddress{
					with(object("10.0.1.1", "b"), keep), with(object("10.0.1.2", "b"), keep), with(object("10.0.1.3", "gone"), keep),
				},
			},
			want: []string{"leaked 10.0.1.2:", "leaked 10.0.1.3:", "not-allocated 10.0.1.1 a:"},
		},
		"an object with a name that is none": {
			all:  objects{IPAddresses: []allocation.IPAddress{object("2001:DB8::1", "a"), object("010.0.0.1", "a")}},
			want: []string{"unreadable 010.0.0.1:", "unreadable 2001:DB8::1:"},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			test.all.CIDRs = append(test.all.CIDRs, defaultCIDR())
			x := load(addressSettings(), test.all)
			runPasses(x, start)
			expect(t, x, test.want...)
		})
	}
}

// keep deletes an object that a finalizer keeps.
func keep(a *allocation.IPAddress) { a.Deleting, a.Finalizers = true, []string{"example.com/hold"} }

// Most finalizers are gone in a moment, and a Service may change all the time.
func TestIndex_KeptObjectIsReportedAfterAGracePeriodThatNoServiceRestarts(t *testing.T) {
	x := load(addressSettings(), objects{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{service("a", "10.0.1.1")},
		IPAddresses: []allocation.IPAddress{with(object("10.0.1.1", "a"), keep)},
	})
	for second := range 80 {
		now := start.Add(time.Duration(second) * time.Second)
		x.PutService(service("a", "10.0.1.1"))
		x.Compare(now)
		x.Observe(now)
		if second == 60 {
			expect(t, x, "? not-allocated 10.0.1.1 a:")
		}
	}
	expect(t, x, "not-allocated 10.0.1.1 a:")
	const want = "service bar/a uses 10.0.1.1, and of its ipaddress: it is being deleted, and finalizers keep it: example.com/hold"
	if got, _ := x.Finding("findings/not-allocated.ip-addresses.10.0.1.1"); got.Message != want || got.RepairMode() != allocation.RepairManual {
		t.Errorf("finding is %+v, want %q", got, want)
	}
	x.DeleteIPAddress("10.0.1.1")
	x.Compare(start.Add(2 * time.Minute))
	x.Compare(start.Add(2*time.Minute + time.Second))
	expect(t, x, "not-allocated 10.0.1.1 a: create")
}

// Both families, a range inside another one, a range that is not ready, and objects of others.
func TestIndex_CountsWhatIsInsideTheRangesThatAreAllocatedFrom(t *testing.T) {
	foreign := func(address string) allocation.IPAddress {
		return with(object(address, "g"), func(a *allocation.IPAddress) {
			a.ManagedBy, a.Parent = "else", allocation.Parent{Group: "example.com", Resource: "things", Name: "g"}
		})
	}
	x := load(addressSettings(), objects{
		CIDRs: []allocation.CIDR{
			{Name: "kubernetes", Prefixes: []string{"10.0.0.0/24", "fd00::/112"}, Ready: true},
			{Name: "inside", Prefixes: []string{"10.0.0.128/25"}, Ready: true},
			{Name: "same", Prefixes: []string{"10.0.0.0/24"}, Ready: true},
			{Name: "off", Prefixes: []string{"10.0.0.0/16", "10.2.0.0/30"}},
		},
		IPAddresses: []allocation.IPAddress{
			object("10.0.0.1", "a"), object("10.0.0.200", "b"), object("fd00::1", "a"), object("10.2.0.1", "c"),
			foreign("10.0.0.9"), foreign("192.168.0.1"), foreign("fd01::1"),
		},
	})
	want := []allocation.RangeCount{
		{Range: "10.0.0.0/24", Family: allocation.FamilyIPv4, Allocated: 3, Capacity: 254},
		{Range: "fd00::/112", Family: allocation.FamilyIPv6, Allocated: 1, Capacity: 65535},
	}
	state := x.StoreStates()[0]
	if diff := cmp.Diff(want, state.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if allocated, capacity := state.Total(); allocated != 4 || capacity != 65789 {
		t.Errorf("total is %d of %d, want 4 of 65789", allocated, capacity)
	}
	x.PutCIDR(allocation.CIDR{Name: "off", Prefixes: []string{"10.0.0.0/16"}, Ready: true})
	want[0] = allocation.RangeCount{Range: "10.0.0.0/16", Family: allocation.FamilyIPv4, Allocated: 3, Capacity: 65534}
	if diff := cmp.Diff([]allocation.RangeCount{want[1], want[0]}, x.StoreStates()[0].Counts); diff != "" {
		t.Errorf("counts once the outer range is ready (-want +got):\n%s", diff)
	}
}

func TestIndex_OldestServiceIsTheRightfulOneWhereNoObjectSaysSo(t *testing.T) {
	younger, older := service("a", "10.0.1.1"), service("b", "10.0.1.1")
	younger.Created = birth.Add(time.Minute)
	x := load(addressSettings(), objects{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{younger, older},
	})
	runPasses(x, start)
	expect(t, x, "duplicate-owner 10.0.1.1 b a:", "not-allocated 10.0.1.1 b a: create (ask)")
}

func TestIndex_WithoutReadableCIDRsNoAddressIsOutOfRange(t *testing.T) {
	services := []allocation.Service{service("a", "10.0.1.1"), service("b", "10.0.1.2")}
	cases := map[string]struct {
		cidrs []allocation.CIDR
		want  []string
	}{
		"none": {want: []string{
			"not-allocated 10.0.1.1 a:", "not-allocated 10.0.1.2 b:", "range-mismatch :",
		}},
		"one that cannot be read": {
			cidrs: []allocation.CIDR{{Name: "odd", Prefixes: []string{"10.0.0.0/99"}, Ready: true}},
			want:  []string{"not-allocated 10.0.1.1 a:", "not-allocated 10.0.1.2 b:", "unreadable odd:"},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			x := load(addressSettings(), objects{CIDRs: test.cidrs, Services: services})
			runPasses(x, start)
			expect(t, x, test.want...)
			x.PutCIDR(defaultCIDR())
			x.DeleteCIDR("odd")
			runPasses(x, start.Add(time.Hour))
			expect(t, x, "not-allocated 10.0.1.1 a: create", "not-allocated 10.0.1.2 b: create")
		})
	}
}

func TestIndex_FullMeansThatNoReadyCIDRHasAFreeAddress(t *testing.T) {
	small := allocation.CIDR{Name: "small", Prefixes: []string{"10.0.0.0/30"}, Ready: true}
	x := load(addressSettings(), objects{
		CIDRs:       []allocation.CIDR{small},
		Services:    []allocation.Service{service("a", "10.0.0.1"), service("b", "10.0.0.2")},
		IPAddresses: []allocation.IPAddress{object("10.0.0.1", "a"), object("10.0.0.2", "b")},
	})
	runPasses(x, start)
	expect(t, x, "range-full IPv4:")
	x.PutCIDR(allocation.CIDR{Name: "more", Prefixes: []string{"10.1.0.0/24"}, Ready: true})
	x.Compare(start.Add(time.Hour))
	expect(t, x)
	x.PutCIDR(allocation.CIDR{Name: "more", Prefixes: []string{"10.1.0.0/24"}})
	x.Compare(start.Add(time.Hour))
	expect(t, x, "range-full IPv4:")
	x.DeleteIPAddress("10.0.0.2")
	x.DeleteService(key("b"))
	x.Compare(start.Add(time.Hour))
	expect(t, x)
}

func TestIndex_FindingHasAllFields(t *testing.T) {
	x := load(addressSettings(), objects{
		CIDRs:    []allocation.CIDR{defaultCIDR()},
		Services: []allocation.Service{service("a", "10.0.1.1")},
	})
	x.Compare(start)
	x.Compare(start.Add(250 * time.Millisecond))
	owner := allocation.Owner{Key: key("a"), UID: "uid-a"}
	want := allocation.Finding{
		Name: "findings/not-allocated.ip-addresses.10.0.1.1", Code: allocation.NotAllocated, Store: allocation.IPAddresses,
		Subject: "10.0.1.1",
		Message: "service bar/a uses 10.0.1.1, for which there is no ipaddress",
		Owners:  []allocation.Owner{owner},
		Evidence: []allocation.Evidence{
			{Code: allocation.ServiceUse, Source: "service", Service: &owner, Finding: "service bar/a uses 10.0.1.1"},
			{
				Code: allocation.AddressObject, Broken: true, Source: "ipaddress",
				Finding: "there is no ipaddress 10.0.1.1", Next: "allocate it before another service gets it",
			},
		},
		Repair: "create ipaddress 10.0.1.1 in the name of service bar/a",
		Safe:   true, State: allocation.StateOpen, Since: start,
		Steps: []allocation.Step{{
			Finding: "findings/not-allocated.ip-addresses.10.0.1.1", Verb: planned.Create, Store: allocation.IPAddresses,
			Subject: "10.0.1.1",
			Object: allocation.IPAddress{
				Name: "10.0.1.1", Parent: allocation.ServiceParent(key("a")),
				ManagedBy: allocation.AllocatorName, Family: allocation.FamilyIPv4,
			},
			Guard: allocation.Guard{Absent: true}, Owner: owner, Sole: true, Reason: allocation.ReasonInUse,
			Detail: "service bar/a uses 10.0.1.1, for which there is no ipaddress", Safe: true,
		}},
	}
	if diff := cmp.Diff([]allocation.Finding{want}, x.Findings()); diff != "" {
		t.Errorf("finding differs (-want +got):\n%s", diff)
	}
}
