package allocation_test

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// birth is the creation time of the objects, and start the time of the first comparison.
var (
	birth = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	start = birth.Add(time.Hour)
)

func key(name string) allocation.Key { return allocation.Key{Namespace: "bar", Name: name} }

func service(name string, addresses ...string) allocation.Service {
	return allocation.Service{
		Key: key(name), UID: "uid-" + name, Type: allocation.ClusterIP, ClusterIPs: addresses, Created: birth,
	}
}

func nodePorts(name string, ports ...int32) allocation.Service {
	s := service(name)
	for _, port := range ports {
		s.Ports = append(s.Ports, allocation.Port{Number: port, Protocol: "TCP"})
	}
	return s
}

// object returns an IPAddress as the allocator writes it for a Service.
func object(address, name string) allocation.IPAddress {
	family := allocation.FamilyIPv4
	if strings.Contains(address, ":") {
		family = allocation.FamilyIPv6
	}
	return allocation.IPAddress{
		Name: address, UID: "uid-" + address, ResourceVersion: "7", Created: birth,
		Parent: allocation.ServiceParent(key(name)), ManagedBy: allocation.AllocatorName, Family: family,
	}
}

func defaultCIDR() allocation.CIDR {
	return allocation.CIDR{Name: "kubernetes", Prefixes: []string{"10.0.0.0/16", "2001:db8::/64"}, Ready: true}
}

// bitmap returns a stored range with some bits set.
func bitmap(store allocation.Store, text string, offsets ...int) allocation.Bitmap {
	number := new(big.Int)
	for _, offset := range offsets {
		number.SetBit(number, offset, 1)
	}
	return allocation.Bitmap{Store: store, Range: text, Data: number.Bytes(), Revision: 40}
}

func addressSettings() allocation.Settings {
	return allocation.Settings{Stores: []allocation.Store{allocation.IPAddresses}}
}

func portSettings() allocation.Settings {
	return allocation.Settings{Stores: []allocation.Store{allocation.NodePorts}}
}

// objects are the objects of a cluster.
type objects struct {
	Services    []allocation.Service
	IPAddresses []allocation.IPAddress
	CIDRs       []allocation.CIDR
	Bitmaps     []allocation.Bitmap
}

// compareAll compares all objects once, so that every finding with a grace period is pending.
func compareAll(settings allocation.Settings, all objects, now time.Time) []allocation.Finding {
	x := load(settings, all)
	x.Compare(now)
	return x.Findings()
}

// load returns an index with all objects.
func load(settings allocation.Settings, s objects) *allocation.Index {
	x := allocation.NewIndex(settings)
	for _, c := range s.CIDRs {
		x.PutCIDR(c)
	}
	for _, b := range s.Bitmaps {
		x.PutBitmap(b)
	}
	for _, a := range s.IPAddresses {
		x.PutIPAddress(a)
	}
	for _, v := range s.Services {
		x.PutService(v)
	}
	return x
}

// runPasses makes a pass every ten seconds for two minutes, and returns the time of the last one.
func runPasses(x *allocation.Index, from time.Time) time.Time {
	for now := from; ; now = now.Add(10 * time.Second) {
		x.Compare(now)
		x.Observe(now)
		if now.Sub(from) >= 2*time.Minute {
			x.Compare(now)
			return now
		}
	}
}

// briefly formats findings as "code subject owners: steps", with "?" before a pending one.
func briefly(findings []allocation.Finding) []string {
	var brief []string
	for _, f := range findings {
		text := f.Code.String() + " " + f.Subject
		if f.State == allocation.StatePending {
			text = "? " + text
		}
		for _, owner := range f.Owners {
			text += " " + owner.Name
		}
		text += ":"
		for _, s := range f.Steps {
			text += " " + string(s.Verb)
		}
		if len(f.Steps) > 0 && !f.Safe {
			text += " (ask)"
		}
		brief = append(brief, text)
	}
	return brief
}

func expect(t *testing.T, x *allocation.Index, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, briefly(x.Findings())); diff != "" {
		t.Errorf("findings differ (-want +got):\n%s", diff)
	}
}

func sequence(from, to int) []int {
	var numbers []int
	for i := from; i < to; i++ {
		numbers = append(numbers, i)
	}
	return numbers
}

func numbered(name string, n int) string { return fmt.Sprintf("%s-%s", name, strconv.Itoa(n)) }
