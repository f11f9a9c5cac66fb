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

// birth is when the things of these tests were made, and start when they are first looked at.
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

// object is an IPAddress as the allocator writes it for a Service.
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

// bitmap is a stored range with bits set.
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

// load tells a new ledger of everything.
func load(settings allocation.Settings, s allocation.Snapshot) *allocation.Index {
	l := allocation.NewIndex(settings)
	for _, c := range s.CIDRs {
		l.PutCIDR(c)
	}
	for _, b := range s.Bitmaps {
		l.PutBitmap(b)
	}
	for _, a := range s.IPAddresses {
		l.PutIPAddress(a)
	}
	for _, v := range s.Services {
		l.PutService(v)
	}
	return l
}

// ripen audits and sights for two minutes, every ten seconds, and says when that was over.
func ripen(l *allocation.Index, from time.Time) time.Time {
	for now := from; ; now = now.Add(10 * time.Second) {
		l.Compare(now)
		l.Observe(now)
		if now.Sub(from) >= 2*time.Minute {
			l.Compare(now)
			return now
		}
	}
}

// briefly is what a finding says that these tests compare: "code subject owners: steps", with "?" before what is pending.
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

func expect(t *testing.T, l *allocation.Index, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, briefly(l.Findings())); diff != "" {
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
