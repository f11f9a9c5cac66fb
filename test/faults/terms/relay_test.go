package terms

import (
	"net"
	"sync"
	"testing"
)

// relay forwards connections between a replica and etcd. Each direction can be blocked separately.
// Blocked bytes arrive late, as after a retransmission by TCP. While disconnected, the relay closes
// every connection and refuses new ones.
type relay struct {
	listener net.Listener
	target   string
	workers  sync.WaitGroup
	toEtcd   *gate
	fromEtcd *gate

	mu           sync.Mutex // guards the following fields
	disconnected bool
	conns        map[net.Conn]bool
}

func newRelay(t testing.TB, target string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, target: target, toEtcd: newGate(), fromEtcd: newGate(), conns: map[net.Conn]bool{}}
	r.workers.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		r.disconnect(true)
		r.toEtcd.set(true)
		r.fromEtcd.set(true)
		r.workers.Wait()
	})
	return r
}

func (r *relay) endpoint() string { return "http://" + r.listener.Addr().String() }

func (r *relay) disconnect(disconnected bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disconnected = disconnected
	if disconnected {
		for conn := range r.conns {
			_ = conn.Close()
		}
	}
}

// track registers a connection, so that disconnect closes it. It returns false while the relay is
// disconnected.
func (r *relay) track(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.disconnected {
		r.conns[conn] = true
	}
	return !r.disconnected
}

func (r *relay) untrack(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
	_ = conn.Close()
}

func (r *relay) accept() {
	for {
		replica, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.workers.Go(func() { r.forward(replica) })
	}
}

func (r *relay) forward(replica net.Conn) {
	defer r.untrack(replica)
	if !r.track(replica) {
		return
	}
	etcd, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer r.untrack(etcd)
	if !r.track(etcd) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		r.fromEtcd.copyBytes(replica, etcd)
		_ = replica.Close()
	})
	r.toEtcd.copyBytes(etcd, replica)
	_ = etcd.Close()
	back.Wait()
}

// gate lets the bytes of one direction pass while it is open.
type gate struct {
	mu     sync.Mutex // guards open
	opened sync.Cond
	open   bool
}

func newGate() *gate {
	g := &gate{open: true}
	g.opened.L = &g.mu
	return g
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	g.opened.Broadcast()
}

func (g *gate) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.open {
		g.opened.Wait()
	}
}

// copyBytes copies bytes until one end is closed. It waits at a closed gate.
func (g *gate) copyBytes(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		g.wait()
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
	}
}
