package authn

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// tokenPeriod is how often the token of a long stream is reviewed, which may need a request.
	tokenPeriod = 8 * time.Second
	// certificatePeriod is how often the authority of a certificate is looked up. An authority is
	// gone from its file when two reads miss it, and these lookups may be the only ones.
	certificatePeriod = 4 * time.Second
)

// RecheckPeriod returns how often the credential of a long stream is to be reviewed.
func (c *Caller) RecheckPeriod() time.Duration {
	if c.Credential == Certificate {
		return certificatePeriod
	}
	return tokenPeriod
}

// Await returns NOT_AUTHENTICATED when the credential of the caller no longer counts: its
// certificate or the authority of it ends, or its token is revoked. It returns nil when ctx ends. A
// review that fails decides nothing.
func (c *Caller) Await(ctx context.Context) error {
	var ended <-chan time.Time
	if !c.Expires.IsZero() {
		timer := time.NewTimer(time.Until(c.Expires))
		defer timer.Stop()
		ended = timer.C
	}
	var due <-chan time.Time
	if c.Recheck != nil {
		ticker := time.NewTicker(Jitter(c.RecheckPeriod()))
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
