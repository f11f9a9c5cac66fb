package api

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/internal/backoff"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

const (
	// idleTimeout is how long a peer without waiting beats keeps its connection.
	idleTimeout = time.Minute
	// callTimeout bounds one call. It doubles up to maxCallTimeout while the peer is slower: a slow
	// peer gets fewer beats, and not none. The age of a beat can be wrong by the time of its call,
	// so maxCallTimeout is well below the grace period of a node.
	callTimeout    = 2 * time.Second
	maxCallTimeout = 8 * time.Second
	// minBackoff and maxBackoff bound the pause after a failed call.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// runSender sends to one peer until ctx ends or the peer has been idle for idleTimeout.
func (f *Forwarder) runSender(ctx context.Context, p *forwardQueue) {
	connection, err := f.cfg.Dial(p.address)
	if err != nil {
		f.cfg.Logger.Warn("cannot dial peer; beats are not forwarded", "peer", p.address, "error", err)
		backoff.Sleep(ctx, maxBackoff) // otherwise each offer would dial again
		f.mu.Lock()
		defer f.mu.Unlock()
		f.drop(p)
		return
	}
	f.send(ctx, p, connection)
	if err := connection.Close(); err != nil {
		f.cfg.Logger.Warn("cannot close connection to peer", "peer", p.address, "error", err)
	}
}

func (f *Forwarder) send(ctx context.Context, p *forwardQueue, connection Connection) {
	failures, timeout := 0, callTimeout
	for ctx.Err() == nil {
		batch := f.take(p)
		if len(batch) == 0 {
			if !f.waitForBeats(ctx, p) {
				return
			}
			continue
		}
		begin := time.Now()
		err := f.sendBatch(ctx, p, connection, batch, timeout)
		timeout = nextTimeout(timeout, time.Since(begin), err)
		if err == nil {
			failures = 0
			continue
		}
		if failures++; failures == 1 {
			f.cfg.Logger.Warn("cannot forward beats to peer; retrying", "peer", p.address, "beats", len(batch), "error", err)
		}
		backoff.Sleep(ctx, backoff.Jitter(backoff.Exponential{Min: minBackoff, Max: maxBackoff}.After(failures)))
	}
}

// nextTimeout returns the timeout of the call after one that took a time and returned err.
func nextTimeout(timeout, took time.Duration, err error) time.Duration {
	switch {
	case err == nil && took < callTimeout:
		return callTimeout
	case status.Code(err) == codes.DeadlineExceeded:
		return backoff.Exponential{Min: callTimeout, Max: maxCallTimeout}.Next(timeout)
	}
	return timeout
}

// sendBatch makes one call. The beats of a failed call wait again, unless a repetition would fail
// too.
func (f *Forwarder) sendBatch(ctx context.Context, p *forwardQueue, connection Connection, batch []waitingBeat, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now := time.Now()
	beats := make([]AgedBeat, 0, len(batch))
	for _, r := range batch {
		beats = append(beats, AgedBeat{Beat: r.beat, Age: now.Sub(r.at)})
	}
	rejected, err := connection.Send(ctx, beats)
	switch {
	case err == nil:
		f.countBeats("forwarded", len(batch)-rejected)
		f.countBeats("rejected", rejected)
	case permanent(err):
		f.countBeats("dropped", len(batch))
	default:
		f.putBack(p, batch)
	}
	if err != nil {
		return fmt.Errorf("forward %d beats to %s: %w", len(batch), p.address, err)
	}
	return nil
}

// permanent reports whether the same call would fail in the same way again.
func permanent(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return false
}

func (f *Forwarder) take(p *forwardQueue) []waitingBeat {
	f.mu.Lock()
	defer f.mu.Unlock()
	batch, expired := p.take(time.Now())
	f.countBeats("dropped", expired)
	return batch
}

// putBack enqueues beats again, up to maxWaiting, unless a newer beat of the same holder waits.
func (f *Forwarder) putBack(p *forwardQueue, batch []waitingBeat) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := 0
	for _, r := range batch {
		if !f.running || len(p.waiting) >= maxWaiting {
			lost++
			continue
		}
		p.put(r)
	}
	f.countBeats("dropped", lost+p.expire(time.Now()))
}

// waitForBeats returns true when beats may wait, and false when ctx has ended or the idle peer has
// been removed.
func (f *Forwarder) waitForBeats(ctx context.Context, p *forwardQueue) bool {
	timer := time.NewTimer(idleTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.wake:
		return true
	case <-timer.C:
		return !f.removeIdle(p)
	}
}

func (f *Forwarder) removeIdle(p *forwardQueue) (removed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(p.waiting) > 0 {
		return false
	}
	delete(f.queues, p.address)
	return true
}

// PeerConnection is a Connection over gRPC.
type PeerConnection struct {
	connection *grpc.ClientConn
	replica    string // the ID of this replica
}

// NewPeerConnection returns a connection that owns a gRPC connection to the peer. replica is the ID
// of this replica.
func NewPeerConnection(connection *grpc.ClientConn, replica string) *PeerConnection {
	return &PeerConnection{connection: connection, replica: replica}
}

// Send sends at most 1,000 beats and returns how many the peer rejected.
func (c *PeerConnection) Send(ctx context.Context, beats []AgedBeat) (rejected int, err error) {
	request := &leasev1.ForwardHeartbeatsRequest{ReplicaId: c.replica, Beats: make([]*leasev1.ForwardedBeat, 0, len(beats))}
	for i := range beats {
		b := &beats[i]
		request.Beats = append(request.Beats, &leasev1.ForwardedBeat{
			Beat: &leasev1.Beat{
				Holder:   &leasev1.Holder{Class: b.Class, Name: b.Name, BootId: b.Boot},
				Sequence: b.Sequence, Report: reportOf(b.Report),
			},
			Age:               durationpb.New(b.Age),
			OpenedBy:          b.Owner,
			Mode:              b.Mode,
			ConditionsOmitted: b.Report != nil && b.Report.ConditionsOmitted,
		})
	}
	response, err := leasev1.NewPeerServiceClient(c.connection).ForwardHeartbeats(ctx, request)
	if err != nil {
		return 0, err
	}
	if len(response.Results) != len(beats) {
		return 0, fmt.Errorf("peer returned %d results for %d beats", len(response.Results), len(beats))
	}
	for _, result := range response.Results {
		if result.GetGrant() == nil {
			rejected++
		}
	}
	return rejected, nil
}

// Close closes the gRPC connection.
func (c *PeerConnection) Close() error { return c.connection.Close() }
