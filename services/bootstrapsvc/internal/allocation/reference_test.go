package allocation_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// reference is a second implementation of the comparison, without an index and without steps. It
// handles only the values that anyService and the other generators draw, and only single addresses
// and ports.
type reference struct{ *model }

func (o reference) uses(s allocation.Service, address string) bool {
	return s.Type != allocation.ExternalName && slices.Contains(s.ClusterIPs, address)
}

func (o reference) inside(address string) bool {
	for _, c := range o.cidrs {
		for _, text := range c.Prefixes {
			prefix, err := netip.ParsePrefix(text)
			if err == nil && prefix.Contains(netip.MustParseAddr(address)) &&
				!slices.Contains([]string{"10.0.0.7/29", "10.0.0.3/30"}, address+text[len(text)-3:]) {
				return true // the last address of an IPv4 prefix is its broadcast
			}
		}
	}
	return false
}

// known reports whether there are prefixes and all can be parsed.
func (o reference) known() bool {
	some := false
	for _, c := range o.cidrs {
		if slices.Contains(c.Prefixes, "odd") {
			return false
		}
		some = some || len(c.Prefixes) > 0
	}
	return some
}

func (o reference) address(address string) []string {
	var users []allocation.Service
	named := false
	for _, s := range o.services {
		if o.uses(s, address) {
			users = append(users, s)
		} else if slices.Contains(s.ClusterIPs, address) {
			named = true
		}
	}
	found, exists := o.addresses[address]
	if len(users) == 0 {
		return o.idle(found, exists && !named)
	}
	var codes []string
	if len(users) > 1 {
		codes = append(codes, "duplicate-owner "+address)
	}
	isUser := slices.ContainsFunc(users, func(s allocation.Service) bool { return found.Parent == allocation.ServiceParent(s.Key) })
	right := object(address, "")
	switch {
	case !o.inside(address) && o.known():
		codes = append(codes, "out-of-range "+address)
	case !exists:
		codes = append(codes, "not-allocated "+address)
	case found.Deleting:
		codes = append(codes, "not-allocated "+address)
	case !isUser:
		codes = append(codes, "wrong-reference "+address)
	case found.ManagedBy != right.ManagedBy || found.Family != right.Family:
		codes = append(codes, "wrong-labels "+address)
	}
	return codes
}

// idle returns what is wrong with an object whose address no Service uses.
func (o reference) idle(found allocation.IPAddress, stays bool) []string {
	_, exists := o.services[found.Parent.Key()]
	ours := found.ManagedBy == allocation.AllocatorName
	switch {
	case !stays, found.Deleting && !ours:
		return nil
	case found.Deleting:
		return []string{"leaked " + found.Name}
	case found.Parent.Group != "" && ours:
		return []string{"wrong-reference " + found.Name}
	case found.Parent.Group != "" || found.ManagedBy == "else":
		return nil
	case exists:
		return []string{"leaked " + found.Name}
	default:
		return []string{"orphan " + found.Name}
	}
}

func (o reference) port(port int32) []string {
	b, stored := o.bitmaps[allocation.NodePorts]
	if !stored || b.Missing || b.Problem != "" || b.Range == "odd" {
		return nil
	}
	first := int32(100)
	if b.Range == "101-107" {
		first = 101
	}
	bits := 0
	for _, octet := range b.Data {
		bits = bits<<8 | int(octet)
	}
	if bits>>(108-first) != 0 {
		return nil // bits behind the end
	}
	services, conflict := 0, false
	for _, s := range o.services {
		protocols := map[string]int{}
		for _, p := range s.Ports {
			if p.Number == port {
				protocols[p.Protocol]++
			}
		}
		if s.HealthCheckNodePort == port {
			protocols["TCP"]++
		}
		if len(protocols) > 0 {
			services++
		}
		conflict = conflict || protocols["TCP"] > 1 || protocols["UDP"] > 1
	}
	var codes []string
	if services > 1 || conflict {
		codes = append(codes, fmt.Sprint("duplicate-owner ", port))
	}
	inside := port >= first && port <= 107
	set := inside && bits>>(port-first)&1 == 1
	switch {
	case !inside && services > 0:
		codes = append(codes, fmt.Sprint("out-of-range ", port))
	case inside && services > 0 && !set:
		codes = append(codes, fmt.Sprint("not-allocated ", port))
	case services == 0 && set:
		codes = append(codes, fmt.Sprint("leaked ", port))
	}
	return codes
}

func TestIndex_AgreesWithTheReferenceComparison(t *testing.T) {
	settings := noGracePeriods()
	settings.Stores = []allocation.Store{allocation.IPAddresses, allocation.NodePorts}
	rapid.Check(t, func(t *rapid.T) {
		c := newModel(settings)
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			c.change(t)
			if rapid.Bool().Draw(t, "audit") {
				c.index.Compare(start)
			}
		}
		c.index.Compare(start)
		var want, got []string
		for _, address := range someAddresses {
			want = append(want, reference{c}.address(address)...)
		}
		for port := int32(90); port <= 310; port++ {
			want = append(want, reference{c}.port(port)...)
		}
		for _, f := range c.index.Findings() {
			switch f.Code {
			case allocation.Invalid, allocation.Unreadable, allocation.RangeMismatch, allocation.RangeFull:
			default:
				got = append(got, f.Code.String()+" "+f.Subject)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("findings differ (-reference +index):\n%s", diff)
		}
	})
}
