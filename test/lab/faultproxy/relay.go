package faultproxy

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Relay forwards TCP connections to one server. Blocked and delayed bytes arrive late, as after a
// retransmission.
type Relay struct {
	listener net.Listener
	target   string
	workers  sync.WaitGroup
	// toTarget has the first, third and further odd connections, and the even ones.
	toTarget   [2]*direction
	fromTarget *direction

	mu           sync.Mutex // guards the following fields
	disconnected bool
	conns        map[net.Conn]bool
}

// NewRelay starts a relay before target, a host with a port.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: listener, target: target, toTarget: [2]*direction{newDirection(), newDirection()}, fromTarget: newDirection(), conns: map[net.Conn]bool{}}
	r.workers.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		for _, d := range r.directions() {
			d.end()
		}
		r.Disconnect(true)
		r.workers.Wait()
	})
	return r
}

// Addr returns the host and port of the relay.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// SetDelay makes bytes of each direction arrive late by delay.
func (r *Relay) SetDelay(delay time.Duration) {
	for _, d := range r.directions() {
		d.set(func(d *direction) { d.delay = delay })
	}
}

// Lose makes the bytes of both directions late, as a link with loss does, until stop is called. TCP
// loses no byte: the first segment that is lost holds up those that follow it until it is sent
// again.
func (r *Relay) Lose(loss Loss) (stop func()) {
	for _, d := range r.directions() {
		d.set(func(d *direction) { d.losses = append(d.losses, &loss) })
	}
	return sync.OnceFunc(func() {
		for _, d := range r.directions() {
			d.set(func(d *direction) {
				d.losses = slices.DeleteFunc(d.losses, func(each *Loss) bool { return each == &loss })
			})
		}
	})
}

// BlockToTarget holds the bytes to the target until it was called with false as often as with true,
// so that overlapping faults end with the last one.
func (r *Relay) BlockToTarget(blocked bool) {
	for _, d := range r.toTarget {
		d.set(block(blocked))
	}
}

// BlockHalfToTarget is BlockToTarget for every second connection.
func (r *Relay) BlockHalfToTarget(blocked bool) { r.toTarget[1].set(block(blocked)) }

// BlockFromTarget is BlockToTarget for the bytes from the target.
func (r *Relay) BlockFromTarget(blocked bool) { r.fromTarget.set(block(blocked)) }

func block(blocked bool) func(*direction) {
	return func(d *direction) {
		if blocked {
			d.blocks++
		} else {
			d.blocks = max(0, d.blocks-1)
		}
	}
}

func (r *Relay) directions() []*direction { return append(r.toTarget[:], r.fromTarget) }

// Disconnect closes each connection; while disconnected, the relay closes new ones as well.
func (r *Relay) Disconnect(disconnected bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disconnected = disconnected
	if disconnected {
		for conn := range r.conns {
			_ = conn.Close()
		}
	}
}

func (r *Relay) accept() {
	for i := 0; ; i++ {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.workers.Go(func() { r.forward(client, r.toTarget[i%2]) })
	}
}

func (r *Relay) forward(client net.Conn, toTarget *direction) {
	defer r.untrack(client)
	if !r.track(client) {
		return
	}
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer r.untrack(server)
	if !r.track(server) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		r.fromTarget.copyBytes(client, server)
		_ = client.Close()
	})
	toTarget.copyBytes(server, client)
	_ = server.Close()
	back.Wait()
}

// track registers a connection, so that Disconnect closes it. It returns false while the relay is
// disconnected.
func (r *Relay) track(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.disconnected {
		r.conns[conn] = true
	}
	return !r.disconnected
}

func (r *Relay) untrack(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
	_ = conn.Close()
}

// direction is one of the two directions of all connections of a relay.
type direction struct {
	mu      sync.Mutex // guards the following fields
	changed chan struct{}
	blocks  int // blocked by as many calls
	ended   bool
	delay   time.Duration
	losses  []*Loss
}

func newDirection() *direction { return &direction{changed: make(chan struct{})} }

func (d *direction) set(change func(*direction)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *direction) end() { d.set(func(d *direction) { d.ended = true }) }

// lag draws how late the losses make a chunk.
func (d *direction) lag() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lag time.Duration
	for _, loss := range d.losses {
		lag += loss.lag()
	}
	return lag
}

// wait returns when bytes may pass.
func (d *direction) wait(next chunk) {
	for {
		d.mu.Lock()
		changed, blocked, ended, late := d.changed, d.blocks > 0, d.ended, time.Until(next.arrived.Add(d.delay+next.lag))
		d.mu.Unlock()
		if ended || !blocked && late <= 0 {
			return
		}
		var due <-chan time.Time
		if !blocked {
			due = time.After(late)
		}
		select {
		case <-changed:
		case <-due:
		}
	}
}

// copyBytes copies until one end is closed. A queue between reading and writing keeps a delay from
// adding up.
func (d *direction) copyBytes(to, from net.Conn) {
	queue := make(chan chunk, 1024)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(queue)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				queue <- chunk{bytes: buffer[:n], arrived: time.Now(), lag: d.lag()}
			}
			if err != nil {
				return
			}
		}
	})
	failed := false
	for next := range queue {
		d.wait(next)
		if failed {
			continue
		}
		if _, err := to.Write(next.bytes); err != nil {
			failed = true
			_ = from.Close()
		}
	}
	reader.Wait()
}

// Loss is what a caller sees of a link that loses and delays packets. Each chunk that arrives at
// the relay is one packet.
type Loss struct {
	// Delay is the latency of the link in one direction. It varies by Jitter in both directions.
	Delay, Jitter time.Duration
	// Share is the share of the packets that are lost, from 0 to 1. A lost packet arrives after a
	// further time between Least and Most, in which its sender notices the loss.
	Share       float64
	Least, Most time.Duration
}

// lag draws how late one packet arrives.
func (l Loss) lag() time.Duration {
	lag := l.Delay + time.Duration((2*rand.Float64()-1)*float64(l.Jitter))
	if rand.Float64() < l.Share {
		lag += l.Least + time.Duration(rand.Float64()*float64(l.Most-l.Least))
	}
	return max(0, lag)
}
