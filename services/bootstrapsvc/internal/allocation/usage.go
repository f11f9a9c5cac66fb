package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// user is a Service reduced to what it uses.
type user struct {
	Owner
	created int64 // nanoseconds; the order of rightful owners
	// externalName tells that it is of type ExternalName: it uses no address, and those that it still names wait.
	externalName bool
	deleting     bool
	// addresses are distinct, in the order of the spec.
	addresses []netip.Addr
	// ports are distinct, in the order of the spec.
	ports []portUse
	// invalidAddresses and badPorts are values that are none.
	invalidAddresses, invalidPorts []string
}

// portUse is a node port of a Service. One number serves several protocols; twice with one protocol is a conflict with itself.
type portUse struct {
	number   int32
	repeated bool
}

// newUser says what a Service uses.
func newUser(s Service) *user {
	h := &user{
		Owner:        Owner{Key: s.Key, UID: s.UID},
		created:      s.Created.UnixNano(),
		externalName: s.Type == ExternalName,
		deleting:     s.Deleting,
	}
	h.readAddresses(s.ClusterIPs)
	h.readPorts(s)
	return h
}

func (h *user) readAddresses(texts []string) {
	for _, text := range texts {
		if text == "" || text == "None" {
			continue
		}
		address, ok := parseAddress(text)
		switch {
		case !ok:
			h.invalidAddresses = append(h.invalidAddresses, text)
		case !slices.Contains(h.addresses, address):
			h.addresses = append(h.addresses, address)
		}
	}
}

func (h *user) readPorts(s Service) {
	ports := s.Ports
	if s.HealthCheckNodePort != 0 { // It listens by TCP, and shares a number with other protocols as ports do.
		ports = append(slices.Clone(ports), Port{Number: s.HealthCheckNodePort, Protocol: "TCP"})
	}
	for i, port := range ports {
		repeated := slices.ContainsFunc(ports[:i], func(q Port) bool {
			return q.Number == port.Number && protocol(q) == protocol(port)
		})
		h.addPort(port.Number, repeated)
	}
}

func (h *user) addPort(number int32, repeated bool) {
	switch {
	case number == 0:
	case number < 0 || number > 65535:
		if text := fmt.Sprint(number); !slices.Contains(h.invalidPorts, text) {
			h.invalidPorts = append(h.invalidPorts, text)
		}
	default:
		at := slices.IndexFunc(h.ports, func(p portUse) bool { return p.number == number })
		if at < 0 {
			at = len(h.ports)
			h.ports = append(h.ports, portUse{number: number})
		}
		h.ports[at].repeated = h.ports[at].repeated || repeated
	}
}

// hasInvalid tells whether it carries values that a store cannot hold.
func (h *user) hasInvalid(store Store) bool { return len(h.invalid(store)) > 0 }

func (h *user) invalid(store Store) []string {
	if store == NodePorts {
		return h.invalidPorts
	}
	return h.invalidAddresses
}

func protocol(p Port) string { return cmp.Or(p.Protocol, "TCP") }

// compareAge orders the users of one thing: the oldest first, for it was there before the others came.
func compareAge(a, b *user) int {
	return cmp.Or(
		cmp.Compare(a.created, b.created),
		strings.Compare(a.UID, b.UID),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
	)
}

func ownersOf(users []*user) []Owner {
	var owners []Owner
	for _, user := range users {
		owners = append(owners, user.Owner)
	}
	return owners
}
