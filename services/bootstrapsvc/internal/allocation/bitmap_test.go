package allocation_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

func TestIndex_PortsOfOneService(t *testing.T) {
	port := func(number int32, protocol string) allocation.Port {
		return allocation.Port{Number: number, Protocol: protocol}
	}
	cases := map[string]struct {
		ports  []allocation.Port
		health int32
		want   []string
	}{
		"three":                     {ports: []allocation.Port{port(111, "TCP"), port(112, "UDP"), port(113, "UDP")}},
		"twice with TCP":            {ports: []allocation.Port{port(111, "TCP"), port(111, "TCP")}, want: []string{"duplicate-owner 111 a a:"}},
		"twice with UDP":            {ports: []allocation.Port{port(111, "UDP"), port(111, "UDP")}, want: []string{"duplicate-owner 111 a a:"}},
		"twice, once without":       {ports: []allocation.Port{port(111, ""), port(111, "TCP")}, want: []string{"duplicate-owner 111 a a:"}},
		"with two protocols":        {ports: []allocation.Port{port(111, "TCP"), port(112, "TCP"), port(111, "UDP")}},
		"a health check":            {ports: []allocation.Port{port(111, "TCP")}, health: 113},
		"a health check beside UDP": {ports: []allocation.Port{port(111, "UDP")}, health: 111},
		"a health check beside TCP": {ports: []allocation.Port{port(112, "TCP")}, health: 112, want: []string{"duplicate-owner 112 a a:"}},
		"none that is one":          {ports: []allocation.Port{port(0, "TCP")}},
		"no ports": {
			ports: []allocation.Port{port(-3, "TCP"), port(70000, "TCP"), port(70000, "TCP")},
			want:  []string{"invalid bar/a a:"},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			user := service("a")
			user.Ports, user.HealthCheckNodePort = test.ports, test.health
			var set []int
			for _, p := range append(test.ports, port(test.health, "")) {
				if p.Number >= 100 && p.Number <= 200 {
					set = append(set, int(p.Number)-100)
				}
			}
			x := load(portSettings(), objects{
				Services: []allocation.Service{user},
				Bitmaps:  []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200", set...)},
			})
			runPasses(x, start)
			expect(t, x, test.want...)
		})
	}
}

func TestIndex_PortsAgainstAnEmptyBitmap(t *testing.T) {
	older, six := nodePorts("one", 111), service("six")
	older.Created = birth.Add(-time.Hour)
	six.HealthCheckNodePort = 144
	all := objects{
		Services: []allocation.Service{
			older, nodePorts("two", 122, 133), nodePorts("three", 201), nodePorts("four"), nodePorts("five", 111), six,
		},
		Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-200")},
	}
	x := load(portSettings(), all)
	runPasses(x, start)
	expect(t, x,
		"duplicate-owner 111 one five:",
		"not-allocated 111 one five: set",
		"not-allocated 122 two: set",
		"not-allocated 133 two: set",
		"not-allocated 144 six: set",
		"out-of-range 201 three:",
	)
	data, err := all.Bitmaps[0].Write(allocation.PlanRepair(x.Findings()).Safe().Steps)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(bitmap(allocation.NodePorts, "100-200", 11, 22, 33, 44).Data, data); diff != "" {
		t.Errorf("data differs (-want +got):\n%s", diff)
	}
}

func TestIndex_RangesThatCannotBeCompared(t *testing.T) {
	cases := map[string]struct {
		bitmap allocation.Bitmap
		want   []string
	}{
		"another range than expected": {bitmap: bitmap(allocation.NodePorts, "30000-31000", 5), want: []string{"range-mismatch :"}},
		"a range in another notation": {bitmap: bitmap(allocation.NodePorts, "30000+2767", 5), want: []string{"unreadable :"}},
		"a range upside down":         {bitmap: bitmap(allocation.NodePorts, "32767-30000"), want: []string{"unreadable :"}},
		"a range of addresses":        {bitmap: bitmap(allocation.NodePorts, "10.0.0.0/16"), want: []string{"unreadable :"}},
		"no range":                    {bitmap: bitmap(allocation.NodePorts, ""), want: []string{"unreadable :"}},
		"bits behind its end":         {bitmap: bitmap(allocation.NodePorts, "30000-32767", 2768), want: []string{"unreadable :"}},
		"what the codec refused": {
			bitmap: allocation.Bitmap{Store: allocation.NodePorts, Problem: "it is truncated"}, want: []string{"unreadable :"},
		},
		"no key": {bitmap: allocation.Bitmap{Store: allocation.NodePorts, Missing: true}, want: []string{"range-mismatch :"}},
	}
	settings := portSettings()
	settings.Ranges = map[allocation.Store]string{allocation.NodePorts: "30000-32767"}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			x := load(settings, objects{
				Services: []allocation.Service{nodePorts("a", 30080), nodePorts("b", 40000)},
				Bitmaps:  []allocation.Bitmap{test.bitmap},
			})
			now := runPasses(x, start)
			expect(t, x, test.want...)
			if plan := allocation.PlanRepair(x.Findings()); len(plan.Steps) > 0 {
				t.Errorf("plan writes: %s", plan.Material())
			}
			if problem := x.StoreStates()[1].Problem; problem == "" {
				t.Error("the state of the store names no problem")
			}
			// A readable range is compared from the start; earlier observations do not count.
			x.PutBitmap(bitmap(allocation.NodePorts, "30000-32767", 81))
			x.Compare(now)
			expect(t, x, "? leaked 30081:", "? not-allocated 30080 a:", "? out-of-range 40000 b:")
		})
	}
}

func TestIndex_FullRange(t *testing.T) {
	var services []allocation.Service
	for i := range 10 {
		services = append(services, nodePorts(numbered("s", i), int32(100+i)))
	}
	x := load(portSettings(), objects{
		Services: services, Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "100-109", sequence(0, 10)...)},
	})
	runPasses(x, start)
	expect(t, x, "range-full :")
	want := allocation.StoreState{
		Store: allocation.NodePorts, Present: true, Ranges: []string{"100-109"}, Services: 10,
		Counts: []allocation.RangeCount{{Range: "100-109", Allocated: 10, Capacity: 10}},
	}
	if diff := cmp.Diff(want, x.StoreStates()[1]); diff != "" {
		t.Errorf("state differs (-want +got):\n%s", diff)
	}
}

func TestIndex_BitmapsOfAddresses(t *testing.T) {
	settings := allocation.Settings{Stores: []allocation.Store{allocation.ClusterIPs, allocation.SecondaryClusterIPs}}
	first := bitmap(allocation.ClusterIPs, "192.168.1.0/24", 0, 253)
	second := bitmap(allocation.SecondaryClusterIPs, "2000::/108", 0, 65534)
	x := load(settings, objects{
		Services: []allocation.Service{
			service("a", "192.168.1.1", "2000::1"),
			service("b", "192.168.1.254", "2000::ffff"),
			service("c", "192.168.1.100", "2000::64"),
			service("d", "192.168.1.255", "2000::1:0"), // the broadcast, and behind the last bit
			service("e", "1.2.3.4", "2001::1"),
			service("f", "192.168.1.1"),
			service("g", "192.168.1.x"),
		},
		Bitmaps: []allocation.Bitmap{first, second},
	})
	runPasses(x, start)
	expect(t, x,
		"duplicate-owner 192.168.1.1 a f:",
		"invalid bar/g g:",
		"not-allocated 192.168.1.100 c: set",
		"not-allocated 2000::64 c: set",
		"out-of-range 1.2.3.4 e:",
		"out-of-range 192.168.1.255 d:",
		"out-of-range 2000::1:0 d:",
		"out-of-range 2001::1 e:",
	)
}

func TestIndex_AddressOfAFamilyWithoutBitmapIsOutOfRange(t *testing.T) {
	settings := allocation.Settings{Stores: []allocation.Store{allocation.ClusterIPs, allocation.SecondaryClusterIPs}}
	x := load(settings, objects{
		Services: []allocation.Service{service("a", "192.168.1.1", "2000::1")},
		Bitmaps: []allocation.Bitmap{
			bitmap(allocation.ClusterIPs, "192.168.1.0/24", 0), {Store: allocation.SecondaryClusterIPs, Missing: true},
		},
	})
	runPasses(x, start)
	expect(t, x, "out-of-range 2000::1 a:")
}

func TestIndex_BesideObjectsAddressBitmapsReportOnlyBits(t *testing.T) {
	settings := allocation.Settings{Stores: []allocation.Store{allocation.IPAddresses, allocation.ClusterIPs}}
	x := load(settings, objects{
		CIDRs: []allocation.CIDR{defaultCIDR(), {Name: "more", Prefixes: []string{"10.9.0.0/24"}, Ready: true}},
		Services: []allocation.Service{
			service("a", "10.0.0.1"), service("b", "10.0.0.1"), service("c", "10.9.0.9"), service("d", "172.16.0.1"),
		},
		IPAddresses: []allocation.IPAddress{object("10.0.0.1", "a"), object("10.9.0.9", "c"), object("172.16.0.1", "d")},
		Bitmaps:     []allocation.Bitmap{bitmap(allocation.ClusterIPs, "10.0.0.0/24", 4)},
	})
	runPasses(x, start)
	expect(t, x,
		"duplicate-owner 10.0.0.1 a b:",
		"leaked 10.0.0.5: clear",
		"not-allocated 10.0.0.1 a b: set",
		"out-of-range 172.16.0.1 d:",
	)
}

// kube-apiserver takes each of these texts, and stores the range in one form.
func TestPortRange_FormsThatKubeAPIServerTakes(t *testing.T) {
	for text, want := range map[string]string{
		"": "", " ": "", "30000-32767": "30000-32767", " 30000-32767 ": "30000-32767", "30000+2767": "30000-32767",
		"30000": "30000-30000", "0-100": "0-100", "1-65535": "1-65535",
	} {
		if got, err := allocation.PortRange(text); got != want || err != nil {
			t.Errorf("range %q is %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"32767-30000", "30000-", "-30000", "30000-70000", "30000+40000", "a-b", "1-2+3", "30000-32767,1", "-5+9"} {
		if got, err := allocation.PortRange(text); err == nil {
			t.Errorf("range %q is %q, want an error", text, got)
		}
	}
	x := load(portSettings(), objects{
		Services: []allocation.Service{nodePorts("a", 5)}, Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, "0-9", 0, 7)},
	})
	runPasses(x, start)
	expect(t, x, "leaked 7: clear", "not-allocated 5 a: set")
}

// A range that may belong to another cluster is not evidence of anything.
func TestRange_UnverifiedIsNeitherComparedNorWritten(t *testing.T) {
	unverified := bitmap(allocation.NodePorts, "30000-32767", 5)
	unverified.Unverified = "it is another cluster's"
	x := load(portSettings(), objects{
		Services: []allocation.Service{nodePorts("a", 30080), nodePorts("b", 40000)}, Bitmaps: []allocation.Bitmap{unverified},
	})
	now := runPasses(x, start)
	expect(t, x)
	want := allocation.StoreState{Store: allocation.NodePorts, Services: 2, Problem: "it is another cluster's"}
	got := x.StoreStates()[1]
	got.Ranges = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if data, err := unverified.Write(nil); err == nil {
		t.Errorf("it would be written as %x", data)
	}
	x.PutBitmap(bitmap(allocation.NodePorts, "30000-32767", 5))
	x.Compare(now)
	expect(t, x, "? leaked 30005:", "? not-allocated 30080 a:", "? out-of-range 40000 b:")
	x.PutBitmap(unverified)
	x.Compare(now)
	expect(t, x)
}

// A cluster of one family has no second range, and one with IPAddress objects may write no range
// beside them.
func TestRange_OptionalRangeMayBeAbsent(t *testing.T) {
	missing := func(store allocation.Store) allocation.Bitmap { return allocation.Bitmap{Store: store, Missing: true} }
	stores := []allocation.Store{allocation.ClusterIPs, allocation.SecondaryClusterIPs}
	x := load(allocation.Settings{Stores: stores}, objects{
		Services: []allocation.Service{service("a", "10.0.0.1")},
		Bitmaps:  []allocation.Bitmap{bitmap(allocation.ClusterIPs, "10.0.0.0/24", 0), missing(allocation.SecondaryClusterIPs)},
	})
	runPasses(x, start)
	expect(t, x)
	if diff := cmp.Diff(allocation.StoreState{Store: allocation.SecondaryClusterIPs}, x.StoreStates()[3]); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	x.PutBitmap(missing(allocation.ClusterIPs))
	runPasses(x, start)
	expect(t, x, "range-mismatch :")

	stores = append(stores, allocation.IPAddresses)
	x = load(allocation.Settings{Stores: stores}, objects{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{service("a", "10.0.0.1")},
		IPAddresses: []allocation.IPAddress{object("10.0.0.1", "a")},
		Bitmaps:     []allocation.Bitmap{missing(allocation.ClusterIPs), missing(allocation.SecondaryClusterIPs)},
	})
	runPasses(x, start)
	expect(t, x)
}

func TestRange_AddressesOfAnUnreadableRangeAreNotOutOfRange(t *testing.T) {
	x := load(allocation.Settings{Stores: []allocation.Store{allocation.ClusterIPs, allocation.SecondaryClusterIPs}}, objects{
		Services: []allocation.Service{service("a", "10.0.0.1", "2001:db8::1")},
		Bitmaps: []allocation.Bitmap{
			bitmap(allocation.ClusterIPs, "10.0.0.0/24", 0), {Store: allocation.SecondaryClusterIPs, Problem: "it is truncated"},
		},
	})
	runPasses(x, start)
	expect(t, x, "unreadable :")
}
