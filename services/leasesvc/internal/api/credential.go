package api

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/backoff"
)

// minReauthTime is the least time for which a stream goes on after the end of its credential, so
// that its client can open another one with a fresh credential.
const minReauthTime = 30 * time.Second

// credential watches the credential of the caller of one stream. A certificate ends at its time, a
// token when a review says so. A review that fails for another reason changes nothing: while
// kube-apiserver is away, no stream ends and no holder is declared silent.
//
// After the end, each answer carries DIRECTIVE_REAUTH, and no holder is registered. The stream ends
// after another time, and at once if the authority of its certificate is gone. It belongs to one
// goroutine, except ended.
type credential struct {
	caller *authn.Caller
	// interval is the longest time between two reviews, reauthTime what remains after the end.
	interval, reauthTime time.Duration

	timer    *time.Timer // nil for a caller that is not checked
	reviewed chan error  // the results of reviews
	why      string      // of the end
	ended    atomic.Bool
}

// watchCredential returns a credential, of which stop must be called.
func (s *Server) watchCredential(caller *authn.Caller) *credential {
	interval := s.TokenReviewInterval
	if caller.Credential == authn.Certificate {
		interval = caller.RecheckPeriod()
	}
	c := &credential{caller: caller, interval: interval, reauthTime: max(minReauthTime, 2*s.Catalog.LongestInterval())}
	if !caller.Unchecked && (caller.Recheck != nil || !caller.Expires.IsZero()) {
		c.timer = time.NewTimer(c.untilNext(time.Now()))
	}
	return c
}

func (c *credential) stop() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// due is when next must be called; never for nil.
func (c *credential) due() <-chan time.Time {
	if c.timer == nil {
		return nil
	}
	return c.timer.C
}

func (c *credential) untilNext(now time.Time) time.Duration {
	switch {
	case c.caller.Recheck == nil:
		return c.caller.Expires.Sub(now)
	case c.caller.Expires.IsZero():
		return backoff.Jitter(c.interval)
	}
	return min(c.caller.Expires.Sub(now), backoff.Jitter(c.interval))
}

// next begins a review, or ends the credential. The error ends the stream.
func (c *credential) next(ctx context.Context) error {
	now := time.Now()
	switch {
	case c.ended.Load():
		return authn.NotAuthenticated(fmt.Sprintf("%s, and the client has not opened another stream within %v", c.why, c.reauthTime))
	case !c.caller.Expires.IsZero() && !now.Before(c.caller.Expires):
		c.end("the client certificate has expired")
	case c.caller.Recheck == nil:
		c.timer.Reset(c.untilNext(now))
	default:
		// The handler waits for other events meanwhile. The buffer lets the review end after it.
		result := make(chan error, 1)
		c.reviewed = result
		go func() {
			ctx, cancel := context.WithTimeout(ctx, c.interval)
			defer cancel()
			result <- c.caller.Recheck(ctx)
		}()
	}
	return nil
}

// apply takes the result of a review. The error ends the stream.
func (c *credential) apply(err error) error {
	c.reviewed = nil
	switch {
	case status.Code(err) != codes.Unauthenticated:
		c.timer.Reset(c.untilNext(time.Now()))
	case c.caller.Credential == authn.Certificate && time.Now().Before(c.caller.Expires):
		return err // its authority counts for no call either
	default:
		c.end("the token is not valid any more: " + status.Convert(err).Message())
	}
	return nil
}

func (c *credential) end(why string) {
	c.why = why
	c.ended.Store(true)
	c.timer.Reset(c.reauthTime)
}
