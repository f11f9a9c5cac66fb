package leasesvc

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/admission"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// sender is who is at the other end of a stream, by his certificate. Whoever has none is on this machine, for others are not let
// in without, and is not told from his neighbours; so the zero sender is bound by no limit.
type sender struct {
	name  string
	meter *admission.Meter
	// expires is when his certificate does. It was worked out once: a clock that is stepped later does not matter.
	expires monotonic.Instant
}

func (s *server) senderOf(ctx context.Context) sender {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return sender{}
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return sender{}
	}
	certificate := info.State.PeerCertificates[0]
	name := nameIn(certificate)
	left := min(time.Until(certificate.NotAfter), forEver) // some say that they never expire by a year that no count of nanoseconds reaches
	return sender{name: name, meter: s.meters.Open(name), expires: s.now().Add(left)}
}

// nameIn tells certificates apart that differ in whom they are for, and not those that follow one another.
func nameIn(certificate *x509.Certificate) string {
	if len(certificate.URIs) > 0 {
		return certificate.URIs[0].String()
	}
	return certificate.Subject.String()
}

// directive is what a sender is told for a message, beside its answer. An error ends the stream.
func (c *connection) directive() (leasev1.StreamHeartbeatsResponse_Directive, error) {
	if c.sender.meter == nil {
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_UNSPECIFIED, nil
	}
	now := c.now()
	switch verdict := c.sender.meter.Note(now); {
	case verdict == admission.TooMuch:
		c.service.metrics.refusedStreams.WithLabelValues("too_many_messages").Inc()
		return 0, rpcerror.New(codes.ResourceExhausted, reasonTooManyMessages,
			fmt.Sprintf("%q sends more than %d messages a second on all its streams and went on when told to slow down", c.sender.name, c.service.cfg.MaxMessages),
			rpcerror.WithRetryAfter(jittered(calmPause)))
	case now >= c.sender.expires:
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH, nil
	case verdict == admission.Slow:
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN, nil
	}
	return leasev1.StreamHeartbeatsResponse_DIRECTIVE_UNSPECIFIED, nil
}

// forEver is longer than any process lives.
const forEver = 100 * 365 * 24 * time.Hour

// calmPause is when whoever sent too much may come again.
const calmPause = 10 * time.Second

// jittered is half of d up to the whole, so that those who were sent away together do not come back together.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// now counts from the start of the server, for what must not follow a keeper.
func (s *server) now() monotonic.Instant { return monotonic.Instant(time.Since(s.began)) }
