//go:build !linux

package connlimit

import "net"

// limitUnacknowledged does nothing: keepalives end the connection of a client that vanished.
func limitUnacknowledged(net.Conn) {}
