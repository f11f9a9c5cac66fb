//go:build !linux

package connlimit

import (
	"net"
	"net/netip"
)

// installer returns nil: the process refuses the connections of a flood itself.
func installer(net.Listener) func([]netip.Addr) error { return nil }
