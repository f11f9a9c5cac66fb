package apiservers

import (
	"fmt"
	"net/netip"
)

// Kind is how the addresses are chosen.
type Kind int

const (
	// Live publishes the ready servers.
	Live Kind = iota
	// Counted publishes the ready servers. Others that were published stay until there are more than Policy.Count.
	Counted
	// Static publishes what it is given, whoever reports.
	Static
	// Untouched publishes nothing and repairs nothing.
	Untouched
)

// String is what the flag calls it.
func (k Kind) String() string {
	switch k {
	case Live:
		return "lease"
	case Counted:
		return "count"
	case Static:
		return "static"
	case Untouched:
		return "none"
	default:
		return fmt.Sprintf("kind %d", int(k))
	}
}

// Policy says who is published beside the ready servers, and when.
type Policy struct {
	Kind Kind
	// Count is how many addresses Counted keeps at most. Ready servers are published even beyond it.
	Count int
	// MinReady is how many addresses unreadiness alone leaves: published servers that report and are not ready stay up to it.
	// 0 and 1 are the same, because the last address always stays.
	MinReady int
	// KeepLast leaves the last server's address published when it stops in good order.
	KeepLast bool
}

// ServerStatus is how one server stands to the endpoints.
type ServerStatus struct {
	Address netip.Addr
	// Wanted is whether it belongs to them, Published whether it is one of them now.
	Wanted, Published bool
	// Why says for people why it belongs to them, or why not.
	Why string
}
