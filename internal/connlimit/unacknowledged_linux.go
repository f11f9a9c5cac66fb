package connlimit

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long a client may leave data without an acknowledgement. gRPC sets the same
// limit, but only for connections of type *net.TCPConn.
const unacknowledged = 10 * time.Second

// limitUnacknowledged ends a connection whose client vanished while the server sends. Without it,
// the kernel repeats the data for a quarter of an hour, or until a keepalive fails.
func limitUnacknowledged(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // closed already; the first read fails
	}
	_ = raw.Control(func(fd uintptr) {
		// Without the option, keepalives end the connection later.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged/time.Millisecond))
	})
}
