package peers

import "time"

const (
	// maxBatch is how many beats the API accepts in one call.
	maxBatch = 1000
	// maxWaiting is how many holders may wait for one peer: about one of 64 shards of a million
	// holders.
	maxWaiting = 20_000
	// maxAge is the age at which a beat is dropped. The API counts no greater age.
	maxAge = time.Minute
)

// Beat is one heartbeat of one boot of a holder.
type Beat struct {
	Class, Name, Boot string
	// Sequence orders the beats of one boot.
	Sequence uint64
}

// AgedBeat is a beat with the time since this replica received it.
type AgedBeat struct {
	Beat
	Age time.Duration
}

// peer is the queue for one replica. The Forwarder's mutex guards all fields except address and
// wake.
type peer struct {
	address string
	wake    chan struct{} // has an item when a beat may wait
	// hasSender is set once a goroutine sends to the peer.
	hasSender bool
	waiting   map[holder]received
}

// holder identifies a holder across its boots.
type holder struct{ class, name string }

// received is the newest beat of a holder.
type received struct {
	beat Beat
	at   time.Time
}

func newPeer(address string) *peer {
	return &peer{address: address, wake: make(chan struct{}, 1), waiting: map[holder]received{}}
}

// add enqueues all beats or none. It counts every beat as a new holder, which refuses a batch a
// little too early at most.
func (p *peer) add(now time.Time, beats []Beat) bool {
	if len(p.waiting)+len(beats) > maxWaiting {
		return false
	}
	for _, beat := range beats {
		p.put(received{beat: beat, at: now})
	}
	signal(p.wake)
	return true
}

// put enqueues a beat unless a newer one of its holder waits. Of two beats received at the same
// time, the one with the higher sequence is newer.
func (p *peer) put(r received) {
	key := holder{class: r.beat.Class, name: r.beat.Name}
	last, found := p.waiting[key]
	if found && (last.at.After(r.at) ||
		last.at.Equal(r.at) && last.beat.Boot == r.beat.Boot && last.beat.Sequence > r.beat.Sequence) {
		return
	}
	p.waiting[key] = r
}

// take removes and returns at most maxBatch beats. It also removes the expired beats that it meets,
// and counts them.
func (p *peer) take(now time.Time) (batch []received, expired int) {
	for key, r := range p.waiting {
		if len(batch) == maxBatch {
			return batch, expired
		}
		delete(p.waiting, key)
		if now.Sub(r.at) > maxAge {
			expired++
			continue
		}
		batch = append(batch, r)
	}
	return batch, expired
}

// expire removes all expired beats and counts them.
func (p *peer) expire(now time.Time) (expired int) {
	for key, r := range p.waiting {
		if now.Sub(r.at) > maxAge {
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
