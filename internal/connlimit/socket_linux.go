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
	withSocket(c, func(socket int) {
		// Without the option, keepalives end the connection later.
		_ = unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged/time.Millisecond))
	})
}

// waitedFor returns how long the client of a new connection has waited for the server: since the
// connection is open, or since the kernel got the client's last data.
func waitedFor(c net.Conn) (waited time.Duration) {
	withSocket(c, func(socket int) {
		if info, err := unix.GetsockoptTCPInfo(socket, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			waited = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return waited
}

// withSocket calls use with the socket of a connection of TCP that is open.
func withSocket(c net.Conn, use func(socket int)) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // closed already; the first read fails
	}
	_ = raw.Control(func(fd uintptr) { use(int(fd)) }) // it fails likewise
}
