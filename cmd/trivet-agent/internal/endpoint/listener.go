package endpoint

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
)

const (
	// maxStrangers limits the connections on which the node has not yet identified itself. A
	// further one closes the oldest, so that connections that another local user leaves open do not
	// keep the kubelet out.
	maxStrangers = 128
	// maxConnections limits those of the node. A kubelet has a few.
	maxConnections = 512
)

// connections limits the connections of the endpoint.
type connections struct {
	mu        sync.Mutex // guards the fields below
	strangers list.List  // of *conn, oldest first
	nodes     list.List
}

func newConnections() *connections { return &connections{} }

// limit returns a listener whose connections are limited.
func (c *connections) limit(inner net.Listener) net.Listener {
	return &limitedListener{Listener: inner, connections: c}
}

type limitedListener struct {
	net.Listener
	connections *connections
}

// Accept returns the next connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	accepted := &conn{Conn: raw, of: l.connections}
	l.connections.add(accepted)
	return accepted, nil
}

// conn is a counted connection.
type conn struct {
	net.Conn
	of *connections

	// The mutex of connections guards the fields below.
	element *list.Element // nil after the end
	in      *list.List
}

// Close closes the connection and forgets it.
func (c *conn) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *connections) add(added *conn) {
	c.mu.Lock()
	oldest := c.place(added, &c.strangers, maxStrangers)
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close() // its requests end
	}
}

// place puts a connection into a list, and returns the oldest one if the list is full.
func (c *connections) place(placed *conn, in *list.List, limit int) (oldest *conn) {
	if in.Len() >= limit {
		oldest, _ = in.Front().Value.(*conn)
		c.remove(oldest)
	}
	placed.in, placed.element = in, in.PushBack(placed)
	return oldest
}

func (c *connections) remove(removed *conn) {
	if removed.element != nil {
		removed.in.Remove(removed.element)
		removed.element = nil
	}
}

type connKey struct{}

// context lets a request find its connection.
func (c *connections) context(ctx context.Context, raw net.Conn) context.Context {
	if secure, ok := raw.(*tls.Conn); ok {
		raw = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, raw)
}

// identified notes that the connection of a request is the node's.
func (c *connections) identified(ctx context.Context) {
	identified, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return
	}
	c.mu.Lock()
	var oldest *conn
	if identified.element != nil && identified.in == &c.strangers {
		c.remove(identified)
		oldest = c.place(identified, &c.nodes, maxConnections)
	}
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close() // its requests end
	}
}

// count returns the open connections.
func (c *connections) count() (strangers, nodes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.strangers.Len(), c.nodes.Len()
}
