package peers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hopelessFailures makes a rest as long as it gets.
const hopelessFailures = 16

// attend sends to one peer until ctx ends or nothing has waited for it for long. It ends early where the peer's address
// cannot be dialled at all.
func (f *Forwarder) attend(ctx context.Context, p *peer) {
	link, err := f.cfg.Dial(p.address)
	if err != nil {
		f.cfg.Logger.Warn("beats are not handed on", "peer", p.address, "error", err)
		rest(ctx, hopelessFailures) // or every offer would dial again
		f.abandon(p)
		return
	}
	f.send(ctx, p, link)
	if err := link.Close(); err != nil {
		f.cfg.Logger.Warn("connection not closed", "peer", p.address, "error", err)
	}
}

func (f *Forwarder) send(ctx context.Context, p *peer, link Link) {
	failures := 0
	for ctx.Err() == nil {
		batch := f.take(p)
		if len(batch) == 0 {
			if !f.await(ctx, p) {
				return
			}
			continue
		}
		err := f.deliver(ctx, p, link, batch)
		if err == nil {
			failures = 0
			continue
		}
		if failures++; failures == 1 {
			f.cfg.Logger.Warn("beats wait for their peer", "peer", p.address, "beats", len(batch), "error", err)
		}
		rest(ctx, failures)
	}
}

// deliver makes one call. Beats that a failed call may not have delivered wait again, unless no repetition can help.
func (f *Forwarder) deliver(ctx context.Context, p *peer, link Link, batch []heard) error {
	call, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	now := time.Now()
	deliveries := make([]Delivery, 0, len(batch))
	for _, h := range batch {
		deliveries = append(deliveries, Delivery{Beat: h.beat, Age: now.Sub(h.at)})
	}
	refused, err := link.Deliver(call, deliveries)
	switch {
	case err == nil:
		f.cfg.Metrics.delivered(len(batch)-refused, refused)
	case hopeless(err):
		f.cfg.Metrics.dropped(len(batch))
	default:
		f.putBack(p, batch)
	}
	if err != nil {
		return fmt.Errorf("hand %d beats on to %s: %w", len(batch), p.address, err)
	}
	return nil
}

// hopeless tells of errors that the same call would get again.
func hopeless(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return false
}

func (f *Forwarder) take(p *peer) []heard {
	f.mu.Lock()
	defer f.mu.Unlock()
	batch, aged := p.take(time.Now())
	f.cfg.Metrics.dropped(aged)
	return batch
}

// putBack lets beats wait again for which there is still room and no newer one.
func (f *Forwarder) putBack(p *peer, batch []heard) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := 0
	for _, h := range batch {
		if !f.running || len(p.waiting) >= maxWaiting {
			lost++
			continue
		}
		p.keep(h)
	}
	f.cfg.Metrics.dropped(lost + p.prune(time.Now()))
}

// await returns true once something may wait; false when ctx ends or the peer has been forgotten.
func (f *Forwarder) await(ctx context.Context, p *peer) bool {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.wake:
		return true
	case <-timer.C:
		return !f.forget(p)
	}
}

// forget drops a peer for which nothing waits, and tells whether it did.
func (f *Forwarder) forget(p *peer) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(p.waiting) > 0 {
		return false
	}
	delete(f.peers, p.address)
	return true
}

// abandon drops a peer and all that waits for it.
func (f *Forwarder) abandon(p *peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg.Metrics.dropped(len(p.waiting))
	clear(p.waiting)
	delete(f.peers, p.address)
}

// rest pauses for a random share of a time that doubles with every failure in a row.
func rest(ctx context.Context, failures int) {
	timer := time.NewTimer(minPause/2 + rand.N(min(minPause<<min(failures-1, 16), maxPause)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
