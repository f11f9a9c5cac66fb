package peers

import "time"

// peer is a replica and what waits for it. All of it but address and wake is guarded by the Forwarder.
type peer struct {
	address string
	wake    chan struct{} // has an item when something may wait
	// attended is set once a goroutine sends to the peer.
	attended bool
	waiting  map[key]heard
}

// key names a holder over its boots.
type key struct{ class, name string }

// heard is the newest beat of a holder.
type heard struct {
	beat Beat
	at   time.Time
}

func newPeer(address string) *peer {
	return &peer{address: address, wake: make(chan struct{}, 1), waiting: map[key]heard{}}
}

func (b Beat) key() key { return key{class: b.Class, name: b.Name} }

// put adds all beats or none. Each takes the place of an older one of its holder. It counts as if all were of others than
// those who wait, for a full peer has no use for a closer look.
func (p *peer) put(now time.Time, beats []Beat) bool {
	if len(p.waiting)+len(beats) > maxWaiting {
		return false
	}
	for _, beat := range beats {
		p.keep(heard{beat: beat, at: now})
	}
	signal(p.wake)
	return true
}

// keep adds a beat unless a newer one of its holder waits. Of two that were heard at one moment the higher sequence is newer.
func (p *peer) keep(h heard) {
	k := h.beat.key()
	last, waits := p.waiting[k]
	if waits && (last.at.After(h.at) || last.at.Equal(h.at) && last.beat.Boot == h.beat.Boot && last.beat.Sequence > h.beat.Sequence) {
		return
	}
	p.waiting[k] = h
}

// take removes at most a batch, and everything that is too old of what it comes across.
func (p *peer) take(now time.Time) (batch []heard, aged int) {
	for k, h := range p.waiting {
		if len(batch) == maxBatch {
			return batch, aged
		}
		delete(p.waiting, k)
		if now.Sub(h.at) > maxAge {
			aged++
			continue
		}
		batch = append(batch, h)
	}
	return batch, aged
}

// prune removes everything that is too old.
func (p *peer) prune(now time.Time) (aged int) {
	for k, h := range p.waiting {
		if now.Sub(h.at) > maxAge {
			delete(p.waiting, k)
			aged++
		}
	}
	return aged
}
