package peers

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxPeers is far above the number of replicas. It bounds what invented addresses could cost.
const maxPeers = 64

// Connection is a connection to one peer.
type Connection interface {
	// Send sends at most 1,000 beats and returns how many of them the peer refused. It blocks until
	// the peer has answered or ctx ends. It is safe to send a beat twice.
	Send(ctx context.Context, beats []AgedBeat) (refused int, err error)
	// Close closes the connection. It is called once, with no Send in flight.
	Close() error
}

// Config configures a Forwarder. All fields are required.
type Config struct {
	// Dial returns a connection to the replica at an address. It must not block.
	Dial    func(address string) (Connection, error)
	Metrics *Metrics
	Logger  *slog.Logger
}

// Forwarder forwards beats to peers. Its methods are safe for concurrent use; Run is called once.
type Forwarder struct {
	cfg Config
	// added has an item when there may be a peer without a sender.
	added chan struct{}

	mu      sync.Mutex // guards running, peers and every field of a peer that says so; never held across I/O
	running bool
	peers   map[string]*peer
}

// New returns a Forwarder that accepts no beats before Run. It starts nothing.
func New(cfg Config) *Forwarder {
	f := &Forwarder{cfg: cfg, added: make(chan struct{}, 1), peers: map[string]*peer{}}
	cfg.Metrics.observe(f)
	return f
}

// Offer enqueues beats that have just been received, for the replica at an address. It accepts all
// of them or none. It returns false if the address is empty, Run is not running, or too many beats
// wait. It never blocks.
func (f *Forwarder) Offer(address string, beats []Beat) bool {
	accepted := f.offer(address, beats)
	f.cfg.Metrics.offered(len(beats), accepted)
	return accepted
}

func (f *Forwarder) offer(address string, beats []Beat) bool {
	if address == "" || len(beats) == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.running {
		return false
	}
	p := f.peers[address]
	if p == nil {
		if len(f.peers) == maxPeers || len(beats) > maxWaiting {
			return false
		}
		p = newPeer(address)
		f.peers[address] = p
		signal(f.added)
	}
	return p.add(time.Now(), beats)
}

// Run sends beats until ctx ends. Then it drops all waiting beats, closes all connections and
// returns nil.
func (f *Forwarder) Run(ctx context.Context) error {
	var senders sync.WaitGroup
	f.start()
	for ctx.Err() == nil {
		for _, p := range f.withoutSender() {
			senders.Go(func() { f.runSender(ctx, p) })
		}
		select {
		case <-ctx.Done():
		case <-f.added:
		}
	}
	f.stop()
	senders.Wait()
	return nil
}

func (f *Forwarder) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = true
}

func (f *Forwarder) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
	for _, p := range f.peers {
		f.drop(p)
	}
}

// withoutSender returns the peers that have no sender yet, and marks them as having one.
func (f *Forwarder) withoutSender() []*peer {
	f.mu.Lock()
	defer f.mu.Unlock()
	var added []*peer
	for _, p := range f.peers {
		if !p.hasSender {
			p.hasSender = true
			added = append(added, p)
		}
	}
	return added
}

// drop removes a peer and its waiting beats. The caller holds f.mu.
func (f *Forwarder) drop(p *peer) {
	f.cfg.Metrics.dropped(len(p.waiting))
	clear(p.waiting)
	delete(f.peers, p.address)
}

// count returns the number of peers and of beats that wait for them.
func (f *Forwarder) count() (peers, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		waiting += len(p.waiting)
	}
	return len(f.peers), waiting
}
