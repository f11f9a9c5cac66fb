package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// maxPeers is far above the number of replicas. It bounds what invented addresses could cost.
const maxPeers = 64

// Connection is a connection to one peer, which is another replica.
type Connection interface {
	// Send sends at most 1,000 beats and returns how many of them the peer rejected. It blocks
	// until the peer has answered or ctx ends. It is safe to send a beat twice.
	Send(ctx context.Context, beats []AgedBeat) (rejected int, err error)
	// Close closes the connection. It is called once, with no Send in flight.
	Close() error
}

// ForwarderConfig configures a Forwarder. All fields except Metrics are required.
type ForwarderConfig struct {
	// Dial returns a connection to the replica at an address. It must not block.
	Dial func(address string) (Connection, error)
	// Metrics gets trivet_lease_forward_*; nil leaves them unregistered.
	Metrics prometheus.Registerer
	Logger  *slog.Logger
}

// Forwarder forwards beats to the replicas that hold the shards of their holders. Offer never
// blocks on the network. A beat that it accepts is sent within moments, or dropped after a minute
// at the latest. Of several beats of one holder only the newest is sent. The number of peers and
// the number of waiting beats for each peer are bounded, so a slow or absent peer costs a fixed
// amount of memory and delays no other peer.
//
// Each beat carries its age, so a beat that waited does not extend a session too far: the error is
// the duration of the call, which is two seconds at most, and eight for a slow peer. There is one
// connection to each peer, with one call in flight. The connection closes after a minute without
// beats.
//
// Forwarding is best effort: a holder whose beat is rejected or dropped has been told to move, and
// does so by itself. A beat that the peer rejects is not sent elsewhere.
//
// The methods are safe for concurrent use; Run is called once.
type Forwarder struct {
	cfg ForwarderConfig
	// added has an item when there may be a peer without a sender.
	added  chan struct{}
	offers *prometheus.CounterVec // beats by whether they were accepted
	beats  *prometheus.CounterVec // accepted beats by result

	mu      sync.Mutex // guards running, queues and every field of a queue that says so; never held across I/O
	running bool
	queues  map[string]*forwardQueue // by address
}

// NewForwarder returns a Forwarder that accepts no beats before Run. It starts nothing.
func NewForwarder(cfg ForwarderConfig) *Forwarder {
	metrics := promauto.With(cfg.Metrics)
	f := &Forwarder{
		cfg: cfg, added: make(chan struct{}, 1), queues: map[string]*forwardQueue{},
		offers: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_forward_offered_total",
			Help: "Beats of holders whose shard another replica leads, by whether they were accepted for forwarding.",
		}, []string{"result"}),
		beats: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_forward_beats_total",
			Help: "Beats that were accepted for forwarding and not replaced by newer ones, by result.",
		}, []string{"result"}),
	}
	for _, result := range []string{"accepted", "rejected"} {
		f.offers.WithLabelValues(result)
	}
	for _, result := range []string{"forwarded", "rejected", "dropped"} {
		f.beats.WithLabelValues(result)
	}
	metrics.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_forward_waiting", Help: "Beats that wait for forwarding.",
	}, func() float64 {
		_, waiting := f.count()
		return float64(waiting)
	})
	metrics.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_forward_peers", Help: "Replicas to which beats were forwarded recently.",
	}, func() float64 {
		peers, _ := f.count()
		return float64(peers)
	})
	return f
}

// Offer enqueues beats that have just been received, for the replica at an address. It accepts all
// of them or none. It returns false if the address is empty, Run is not running, or too many beats
// wait. It never blocks.
func (f *Forwarder) Offer(address string, beats []Beat) bool {
	accepted, result := f.offer(address, beats), "accepted"
	if !accepted {
		result = "rejected"
	}
	f.offers.WithLabelValues(result).Add(float64(len(beats)))
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
	p := f.queues[address]
	if p == nil {
		if len(f.queues) == maxPeers || len(beats) > maxWaiting {
			return false
		}
		p = newForwardQueue(address)
		f.queues[address] = p
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
	for _, p := range f.queues {
		f.drop(p)
	}
}

// withoutSender returns the peers that have no sender yet, and marks them as having one.
func (f *Forwarder) withoutSender() []*forwardQueue {
	f.mu.Lock()
	defer f.mu.Unlock()
	var added []*forwardQueue
	for _, p := range f.queues {
		if !p.hasSender {
			p.hasSender = true
			added = append(added, p)
		}
	}
	return added
}

// drop removes a peer and its waiting beats. The caller holds f.mu.
func (f *Forwarder) drop(p *forwardQueue) {
	f.countBeats("dropped", len(p.waiting))
	clear(p.waiting)
	delete(f.queues, p.address)
}

func (f *Forwarder) countBeats(result string, n int) { f.beats.WithLabelValues(result).Add(float64(n)) }

// count returns the number of peers and of beats that wait for them.
func (f *Forwarder) count() (peers, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.queues {
		waiting += len(p.waiting)
	}
	return len(f.queues), waiting
}

const (
	// maxBatch is how many beats the API accepts in one call.
	maxBatch = 1000
	// maxWaiting is how many holders may wait for one peer: about one of 64 shards of a million
	// holders.
	maxWaiting = 20_000
	// maxForwardedConditions bounds the texts of the conditions of a forwarded beat: a batch must
	// fit into the largest message that a server accepts. Larger conditions are omitted: the leader
	// keeps those that it has, and the holder reports its own when it registers there.
	maxForwardedConditions = 512
)

// Beat is one heartbeat of one boot of a holder.
type Beat struct {
	Class, Name, Boot string
	// Sequence orders the beats of one boot.
	Sequence uint64
	// Report is nil if the holder was observed just now. Its ages count from the receipt of the
	// beat.
	Report *sessioncontroller.Report
	// Owner is that of a sessioncontroller.Registration, and Mode that of its Agent.
	Owner, Mode string
}

// withoutLargeConditions returns the beat as it is forwarded.
func (b Beat) withoutLargeConditions() Beat {
	if b.Report == nil {
		return b
	}
	bytes := 0
	for i := range b.Report.Conditions {
		c := &b.Report.Conditions[i]
		bytes += 32 + len(c.Type) + len(c.Reason) + len(c.Message)
	}
	if bytes > maxForwardedConditions {
		short := *b.Report
		short.Conditions, short.ConditionsOmitted = nil, true
		b.Report = &short
	}
	return b
}

// AgedBeat is a beat with the time since this replica received it.
type AgedBeat struct {
	Beat
	Age time.Duration
}

// forwardQueue is the queue for one replica. The Forwarder's mutex guards all fields except address
// and wake.
type forwardQueue struct {
	address string
	wake    chan struct{} // has an item when a beat may wait
	// hasSender is set once a goroutine sends to the peer.
	hasSender bool
	waiting   map[holderKey]waitingBeat
}

// holderKey identifies a holder across its boots.
type holderKey struct{ class, name string }

// waitingBeat is the newest beat of a holder.
type waitingBeat struct {
	beat Beat
	at   time.Time
}

func newForwardQueue(address string) *forwardQueue {
	return &forwardQueue{address: address, wake: make(chan struct{}, 1), waiting: map[holderKey]waitingBeat{}}
}

// add enqueues all beats or none. It counts every beat as a new holder, which rejects a batch a
// little too early at most.
func (p *forwardQueue) add(now time.Time, beats []Beat) bool {
	if len(p.waiting)+len(beats) > maxWaiting {
		return false
	}
	for _, beat := range beats {
		p.put(waitingBeat{beat: beat.withoutLargeConditions(), at: now})
	}
	signal(p.wake)
	return true
}

// put enqueues a beat unless a newer one of its holder waits. Of two beats received at the same
// time, the one with the higher sequence is newer.
func (p *forwardQueue) put(r waitingBeat) {
	key := holderKey{class: r.beat.Class, name: r.beat.Name}
	last, found := p.waiting[key]
	if found && (last.at.After(r.at) ||
		last.at.Equal(r.at) && last.beat.Boot == r.beat.Boot && last.beat.Sequence > r.beat.Sequence) {
		return
	}
	p.waiting[key] = r
}

// take removes and returns at most maxBatch beats. It also removes the expired beats that it meets,
// and counts them.
func (p *forwardQueue) take(now time.Time) (batch []waitingBeat, expired int) {
	for key, r := range p.waiting {
		if len(batch) == maxBatch {
			return batch, expired
		}
		delete(p.waiting, key)
		if now.Sub(r.at) > maxForwardedAge {
			expired++
			continue
		}
		batch = append(batch, r)
	}
	return batch, expired
}

// expire removes all expired beats and counts them.
func (p *forwardQueue) expire(now time.Time) (expired int) {
	for key, r := range p.waiting {
		if now.Sub(r.at) > maxForwardedAge {
			delete(p.waiting, key)
			expired++
		}
	}
	return expired
}

// signal wakes the receiver of a channel with a buffer of one.
func signal(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
