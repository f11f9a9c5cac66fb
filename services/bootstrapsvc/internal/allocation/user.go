package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// user is a Service reduced to the addresses and ports that it uses.
type user struct {
	Owner
	created int64 // nanoseconds
	// externalName reports a Service of type ExternalName. It uses no address, but may be about to
	// use those that it still names.
	externalName bool
	deleting     bool
	// addresses are distinct, in the order of the spec.
	addresses []netip.Addr
	// ports are distinct, in the order of the spec.
	ports []portUse
	// invalidAddresses and invalidPorts are values that cannot be parsed. nonCanonical are
	// addresses in another form than the canonical one, which kube-apiserver does not find again.
	invalidAddresses, nonCanonical, invalidPorts []string
}

// portUse is a node port of a Service. Several protocols may share one number; repeated reports
// that one protocol has it twice.
type portUse struct {
	number   int32
	repeated bool
}

func newUser(s Service) *user {
	u := &user{
		Owner:        Owner{Key: s.Key, UID: s.UID},
		created:      s.Created.UnixNano(),
		externalName: s.Type == ExternalName,
		deleting:     s.Deleting,
	}
	u.readAddresses(s.ClusterIPs)
	u.readPorts(s)
	return u
}

func (u *user) readAddresses(texts []string) {
	for _, text := range texts {
		if text == "" || text == "None" {
			continue
		}
		address, ok := parseAddress(text)
		switch {
		case !ok:
			u.invalidAddresses = append(u.invalidAddresses, text)
			continue
		case address.String() != text:
			u.nonCanonical = append(u.nonCanonical, text)
		}
		if !slices.Contains(u.addresses, address) {
			u.addresses = append(u.addresses, address)
		}
	}
}

func (u *user) readPorts(s Service) {
	ports := s.Ports
	if s.HealthCheckNodePort != 0 { // kube-proxy serves health checks by TCP
		ports = append(slices.Clone(ports), Port{Number: s.HealthCheckNodePort, Protocol: "TCP"})
	}
	for i, port := range ports {
		repeated := slices.ContainsFunc(ports[:i], func(earlier Port) bool {
			return earlier.Number == port.Number && protocol(earlier) == protocol(port)
		})
		u.addPort(port.Number, repeated)
	}
}

func (u *user) addPort(number int32, repeated bool) {
	switch {
	case number == 0:
	case number < 0 || number > 65535:
		if text := fmt.Sprint(number); !slices.Contains(u.invalidPorts, text) {
			u.invalidPorts = append(u.invalidPorts, text)
		}
	default:
		at := slices.IndexFunc(u.ports, func(p portUse) bool { return p.number == number })
		if at < 0 {
			at = len(u.ports)
			u.ports = append(u.ports, portUse{number: number})
		}
		u.ports[at].repeated = u.ports[at].repeated || repeated
	}
}

// invalid returns the values of a Service that a store cannot allocate, or not for long.
func (u *user) invalid(store Store) []string {
	switch store {
	case NodePorts:
		return u.invalidPorts
	case IPAddresses:
		return slices.Concat(u.invalidAddresses, u.nonCanonical)
	default:
		return u.invalidAddresses
	}
}

func protocol(p Port) string { return cmp.Or(p.Protocol, "TCP") }

// compareAge orders the users of one subject. The oldest is the rightful owner.
func compareAge(a, b *user) int {
	return cmp.Or(
		cmp.Compare(a.created, b.created),
		strings.Compare(a.UID, b.UID),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
	)
}

func byAge(users []*user) []*user { return slices.SortedFunc(slices.Values(users), compareAge) }

func insertUser(users []*user, u *user) []*user {
	at, _ := slices.BinarySearchFunc(users, u, compareAge)
	return slices.Insert(users, at, u)
}

func removeUser(users []*user, u *user) []*user {
	return slices.DeleteFunc(users, func(other *user) bool { return other == u })
}

func ownersOf(users []*user) []Owner {
	var owners []Owner
	for _, u := range users {
		owners = append(owners, u.Owner)
	}
	return owners
}
