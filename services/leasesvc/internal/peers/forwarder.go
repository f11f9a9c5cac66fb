package peers

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxBatch is how many beats the API takes in one call.
	maxBatch = 1000
	// maxWaiting is how many holders may wait for one peer: those of a shard, of 64, of a million holders.
	maxWaiting = 20_000
	// maxPeers is far beyond how many replicas there are, and bounds what made-up addresses could cost.
	maxPeers = 64
	// maxAge is when a beat is of no more use: the API counts no more of its age.
	maxAge = time.Minute
	// idle is how long a peer is kept for which nothing waits.
	idle = time.Minute
	// deadline bounds one call; a beat every few seconds is worth no longer wait.
	deadline = 2 * time.Second
	// minPause and maxPause bound the pause after a call that failed.
	minPause = 100 * time.Millisecond
	maxPause = 2 * time.Second
)

// Beat is a sign of life of one boot of a holder.
type Beat struct {
	Class, Name, Boot string
	// Sequence orders the beats of one boot.
	Sequence uint64
}

// Delivery is a beat on its way.
type Delivery struct {
	Beat
	// Age is how long ago it was heard.
	Age time.Duration
}

// Link is a connection to one peer.
type Link interface {
	// Deliver hands over at most 1,000 beats and returns how many of them the peer refused. It blocks until the peer has
	// answered or ctx ends. A beat that is delivered twice does no harm.
	Deliver(ctx context.Context, beats []Delivery) (refused int, err error)
	// Close ends the connection. It is called once, with no Deliver under way.
	Close() error
}

// Config is what a Forwarder is made of.
type Config struct {
	// Dial makes a connection to the replica at an address. It must not block.
	Dial    func(address string) (Link, error)
	Metrics *Metrics
	Logger  *slog.Logger
}

// Forwarder hands beats on. Its methods are safe for concurrent use; Run is called once.
type Forwarder struct {
	cfg   Config
	fresh chan struct{} // has an item when there may be a peer that nobody attends

	mu      sync.Mutex // guards what follows and what hangs on it; never held across I/O
	running bool
	peers   map[string]*peer
}

// New returns a Forwarder that takes nothing before Run. It starts nothing.
func New(cfg Config) *Forwarder {
	f := &Forwarder{cfg: cfg, fresh: make(chan struct{}, 1), peers: map[string]*peer{}}
	cfg.Metrics.follow(f)
	return f
}

// Offer takes beats that have just been heard, to be handed on to the replica at owner. It takes all of them or none: false
// says that none was, because nobody is known to be the owner, Run does not run, or too many wait already. It never blocks.
func (f *Forwarder) Offer(owner string, beats []Beat) bool {
	taken := f.offer(owner, beats)
	f.cfg.Metrics.offered(len(beats), taken)
	return taken
}

func (f *Forwarder) offer(owner string, beats []Beat) bool {
	if owner == "" || len(beats) == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.running {
		return false
	}
	p := f.peers[owner]
	if p == nil {
		if len(f.peers) == maxPeers || len(beats) > maxWaiting {
			return false
		}
		p = newPeer(owner)
		f.peers[owner] = p
		signal(f.fresh)
	}
	return p.put(time.Now(), beats)
}

// Run sends until ctx ends; then it drops what waits, closes all connections and returns nil.
func (f *Forwarder) Run(ctx context.Context) error {
	var attendants sync.WaitGroup
	f.begin()
	for ctx.Err() == nil {
		for _, p := range f.unattended() {
			attendants.Go(func() { f.attend(ctx, p) })
		}
		select {
		case <-ctx.Done():
		case <-f.fresh:
		}
	}
	f.end()
	attendants.Wait()
	return nil
}

func (f *Forwarder) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = true
}

// end takes nothing any more and forgets everybody.
func (f *Forwarder) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
	for address, p := range f.peers {
		f.cfg.Metrics.dropped(len(p.waiting))
		clear(p.waiting)
		delete(f.peers, address)
	}
}

func (f *Forwarder) unattended() []*peer {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fresh []*peer
	for _, p := range f.peers {
		if !p.attended {
			p.attended = true
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// count tells how many peers there are and how many beats wait for them.
func (f *Forwarder) count() (peers, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		waiting += len(p.waiting)
	}
	return len(f.peers), waiting
}

// signal wakes the one who waits on the channel, or will.
func signal(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
