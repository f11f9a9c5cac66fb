package api

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// A sender may be ahead of its message rate by slowDownSeconds before it is told to slow down,
	// and by rejectSeconds before it is rejected.
	slowDownSeconds = 1
	rejectSeconds   = 10
	// tooManyMessagesPause is when a rejected sender may return.
	tooManyMessagesPause = 10 * time.Second
	// maxCertificateLife keeps the expiry of a certificate that never expires within the range of a
	// time.Duration.
	maxCertificateLife = 100 * 365 * 24 * time.Hour
)

// limiter is a rate limit that tells rejected callers when to return, each at another time. It is
// safe for concurrent use.
type limiter struct {
	interval time.Duration

	mu     sync.Mutex // guards the fields below
	tokens *rate.Limiter
	// lastReturn is when the last of the rejected callers may return.
	lastReturn time.Time
}

// newLimiter returns a limiter whose burst is one second of its rate.
func newLimiter(perSecond int) *limiter {
	return &limiter{
		interval: time.Duration(float64(time.Second) / float64(perSecond)),
		tokens:   rate.NewLimiter(rate.Limit(perSecond), perSecond),
	}
}

// admit returns how many of n callers are admitted now.
func (l *limiter) admit(now time.Time, n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	admitted := min(n, int(l.tokens.TokensAt(now)))
	l.tokens.AllowN(now, admitted)
	return admitted
}

// retryAfter returns how long a rejected caller must wait. Each caller gets the interval behind the
// previous one.
func (l *limiter) retryAfter(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lastReturn.Before(now) {
		l.lastReturn = now
	}
	l.lastReturn = l.lastReturn.Add(l.interval)
	return l.lastReturn.Sub(now)
}

// jitter returns a random duration between half of d and d, so that clients which were rejected
// together do not return together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sender is the client of one stream, by its certificate. A client without a certificate is on
// loopback; its sender is nil and has no limit.
type sender struct {
	name  string
	meter *meter
	// expires is when the certificate does, by the monotonic clock: a later step of the wall clock
	// does not matter.
	expires time.Time
}

// senders are the meters of all clients with open streams. It is safe for concurrent use.
type senders struct {
	messagesPerSecond int

	mu     sync.Mutex // guards meters and their streams
	meters map[string]*meter
}

func newSenders(messagesPerSecond int) *senders {
	return &senders{messagesPerSecond: messagesPerSecond, meters: map[string]*meter{}}
}

// open returns the sender of a stream or call, or nil for a client without a certificate. The
// caller calls close at its end.
func (s *senders) open(ctx context.Context) *sender {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return nil
	}
	certificate := info.State.PeerCertificates[0]
	name, now := senderName(certificate), time.Now()
	life := min(certificate.NotAfter.Sub(now), maxCertificateLife)
	return &sender{name: name, meter: s.openMeter(name), expires: now.Add(life)}
}

// senderName is the same for a certificate and its renewal.
func senderName(certificate *x509.Certificate) string {
	if len(certificate.URIs) > 0 {
		return certificate.URIs[0].String()
	}
	return certificate.Subject.String()
}

func (s *senders) openMeter(name string) *meter {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.meters[name]
	if m == nil {
		m = newMeter(s.messagesPerSecond)
		s.meters[name] = m
	}
	m.streams++
	return m
}

func (s *senders) close(sender *sender) {
	if sender != nil {
		s.closeMeter(sender.name, time.Now())
	}
}

// closeMeter removes the meter of a sender with its last stream, unless the sender is ahead of its
// rate: a new stream must not reset the limit. Each call also looks at a few other meters, so that
// those of former senders do not accumulate.
func (s *senders) closeMeter(name string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.meters[name]; m != nil {
		m.streams--
	}
	looked := 0
	for name, m := range s.meters {
		if m.streams == 0 && m.idle(now) {
			delete(s.meters, name)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

// messageRate is the result of counting a message.
type messageRate uint8

const (
	withinRate messageRate = iota
	overRate
	// farOverRate means that the sender continued although it was told to slow down.
	farOverRate
)

// meter counts the messages of one sender on all its streams. A message that is farOverRate does
// not count, so a sender that pauses is withinRate again after rejectSeconds at most.
type meter struct {
	tokens  *rate.Limiter
	streams int // open streams; guarded by senders
}

func newMeter(messagesPerSecond int) *meter {
	return &meter{tokens: rate.NewLimiter(rate.Limit(messagesPerSecond), rejectSeconds*messagesPerSecond)}
}

func (m *meter) count(now time.Time) messageRate {
	if !m.tokens.AllowN(now, 1) {
		return farOverRate
	}
	if m.tokens.TokensAt(now) < float64(rejectSeconds-slowDownSeconds)*float64(m.tokens.Limit()) {
		return overRate
	}
	return withinRate
}

// idle reports whether all messages so far are within the rate.
func (m *meter) idle(now time.Time) bool { return m.tokens.TokensAt(now) >= float64(m.tokens.Burst()) }

// directive counts a message and returns what the sender must be told beside the answer. An error
// ends the stream or the call.
func (s *Server) directive(sender *sender) (leasev1.StreamHeartbeatsResponse_Directive, error) {
	if sender == nil {
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_UNSPECIFIED, nil
	}
	now := time.Now()
	switch result := sender.meter.count(now); {
	case result == farOverRate:
		s.metrics.rejectedStreams.WithLabelValues("too_many_messages").Inc()
		return 0, rpcerror.New(codes.ResourceExhausted, reasonTooManyMessages,
			fmt.Sprintf("%q sends more than %d messages per second and did not slow down when told to", sender.name, s.MaxMessages),
			rpcerror.WithRetryAfter(jitter(tooManyMessagesPause)))
	case !now.Before(sender.expires):
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH, nil
	case result == overRate:
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN, nil
	}
	return leasev1.StreamHeartbeatsResponse_DIRECTIVE_UNSPECIFIED, nil
}
