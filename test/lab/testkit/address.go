package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports of FreeAddress are below the range of local ports of outgoing connections (from 32768 on
// Linux), and outside the range of package devcluster. A client that dials a stopped server could
// otherwise get the server's port as its local port, connect to itself, and block the port.
const (
	firstPort = 10_000
	ports     = 10_000
)

// givenPorts are the ports that FreeAddress has returned: the server of one may not listen yet, or
// not at the moment.
var givenPorts sync.Map

// FreeAddress returns a loopback address without a listener. No other call in this process returns
// it.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := firstPort + rand.IntN(ports)
		if _, again := givenPorts.LoadOrStore(port, true); again {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		if listener, err := net.Listen("tcp", address); err == nil {
			listener.Close()
			return address
		}
	}
	t.Fatal("100 ports tried on 127.0.0.1 are all taken")
	return ""
}
