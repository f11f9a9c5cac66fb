package term_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

// relay stands between a client and etcd. Cut, it drops every connection and refuses new ones, as a broken network does.
type relay struct {
	listener net.Listener
	target   string
	workers  sync.WaitGroup

	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]bool
}

func newRelay(t testing.TB, cluster *devcluster.Cluster) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{
		listener: listener, target: strings.TrimPrefix(cluster.EtcdEndpoints()[0], "https://"), conns: map[net.Conn]bool{},
	}
	r.workers.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		r.setCut(true)
		r.workers.Wait()
	})
	return r
}

func (r *relay) endpoint() string { return "https://" + r.listener.Addr().String() }

func (r *relay) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	if cut {
		for conn := range r.conns {
			_ = conn.Close()
		}
	}
}

// keep notes a connection so that a cut closes it; it is false when the relay is cut already.
func (r *relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.conns[conn] = true
	}
	return !r.cut
}

func (r *relay) drop(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
	_ = conn.Close()
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.workers.Go(func() { r.carry(client) })
	}
}

func (r *relay) carry(client net.Conn) {
	defer r.drop(client)
	if !r.keep(client) {
		return
	}
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer r.drop(server)
	if !r.keep(server) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
	_ = server.Close()
	back.Wait()
}
