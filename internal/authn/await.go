package authn

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recheckPeriod is how often the token of a long stream is reviewed.
const recheckPeriod = 8 * time.Second

// Await returns NOT_AUTHENTICATED when the credential of the caller no longer counts: its
// certificate ends, or its token is revoked. It returns nil when ctx ends. A review that fails
// decides nothing.
func (c *Caller) Await(ctx context.Context) error {
	var ended <-chan time.Time
	if !c.Expires.IsZero() {
		timer := time.NewTimer(time.Until(c.Expires))
		defer timer.Stop()
		ended = timer.C
	}
	var due <-chan time.Time
	if c.Recheck != nil {
		ticker := time.NewTicker(Jitter(recheckPeriod))
		defer ticker.Stop()
		due = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			return NotAuthenticated("the client certificate of " + c.Peer.Name + " has ended")
		case <-due:
		}
		if err := c.Recheck(ctx); status.Code(err) == codes.Unauthenticated {
			return err
		}
	}
}

// Jitter returns a period that is up to a tenth shorter or longer, so that many streams that began
// together are not reviewed together.
func Jitter(period time.Duration) time.Duration {
	return period - period/10 + rand.N(period/5)
}
