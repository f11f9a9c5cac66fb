package portforward

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"k8s.io/streaming/pkg/httpstream"
)

// maxFailureBytes limits the text of a failure, which comes from the kubelet.
const maxFailureBytes = 4 << 10

// conn is a stream to a port of a Pod. Unlike the deadline of a socket, a passed deadline closes
// it; gRPC and TLS use deadlines only to end a connection.
type conn struct {
	connection httpstream.Connection
	data       httpstream.Stream
	remote     address

	mu       sync.Mutex // guards the fields below
	failure  error      // what the kubelet reported
	deadline *time.Timer
}

var _ net.Conn = (*conn)(nil)

func newConn(connection httpstream.Connection, data, failures httpstream.Stream, remote address) *conn {
	c := &conn{connection: connection, data: data, remote: remote}
	go c.receiveFailure(failures)
	return c
}

// receiveFailure waits until the kubelet reports that it does not reach the port, or the connection
// ends.
func (c *conn) receiveFailure(failures io.Reader) {
	text, _ := io.ReadAll(io.LimitReader(failures, maxFailureBytes)) // the end of the connection is an error, too
	if len(text) == 0 {
		return
	}
	c.mu.Lock()
	c.failure = fmt.Errorf("port-forward to %s: %s", c.remote, strings.TrimSpace(string(text)))
	c.mu.Unlock()
	_ = c.connection.Close()
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.data.Read(p)
	return n, c.explain(err)
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.data.Write(p)
	return n, c.explain(err)
}

// explain replaces the error of a connection that ended because of a failure.
func (c *conn) explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.failure != nil {
		return c.failure
	}
	return err
}

// Close ends the stream and the connection below it.
func (c *conn) Close() error {
	_ = c.SetDeadline(time.Time{})
	return c.connection.Close()
}

func (c *conn) LocalAddr() net.Addr  { return address("port-forward") }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline != nil {
		c.deadline.Stop()
		c.deadline = nil
	}
	if !t.IsZero() {
		c.deadline = time.AfterFunc(time.Until(t), func() { _ = c.connection.Close() })
	}
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error  { return c.SetDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// address is NAMESPACE/POD:PORT.
type address string

func (a address) Network() string { return "port-forward" }
func (a address) String() string  { return string(a) }
