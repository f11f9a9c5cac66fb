package allocation_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		"an address written with zeros, as old clusters have it": {
			Services:    []allocation.Service{service("a", "010.000.001.001")},
			IPAddresses: []allocation.IPAddress{object("10.0.1.1", "a")},
		},
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
		"an object that is being deleted": {
			Services:    []allocation.Service{service("a", "10.0.1.1")},
			IPAddresses: []allocation.IPAddress{with(object("10.0.1.1", "b"), func(a *allocation.IPAddress) { a.Deleting = true })},
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
			Finding: "findings/not-allocated.ip-addresses.10.0.1.1", Verb: allocation.Create, Store: allocation.IPAddresses,
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
