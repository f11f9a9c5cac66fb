//go:build !linux

package connlimit

import (
	"net"
	"time"
)

// limitUnacknowledged does nothing: keepalives end the connection of a client that vanished.
func limitUnacknowledged(net.Conn) {}

// waitedFor returns 0: the system does not say it.
func waitedFor(net.Conn) time.Duration { return 0 }
