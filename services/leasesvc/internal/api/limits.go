package api

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// A sender may be ahead of its message rate by slowDownSeconds before it is told to slow down,
	// and by rejectSeconds before it is rejected.
	slowDownSeconds = 1
	rejectSeconds   = 10
	// tooManyMessagesPause is when a rejected sender may return.
	tooManyMessagesPause = 10 * time.Second
	// identityShare is the part of the admitted registrations and streams that one identity may
	// use, as a divisor.
	identityShare = 4
	// maxOpen is how many streams and calls one identity may have open. An agent has one stream to
	// each replica, also for many holders.
	maxOpen = 200
	// maxMeters is how many identities have meters of their own. Further ones share one.
	maxMeters = 100_000
	// sharedMeter is the name of the meter that they share. No user has it.
	sharedMeter = ""
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

// idle says whether no caller was admitted within the last second.
func (l *limiter) idle(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tokens.TokensAt(now) >= float64(l.tokens.Burst())
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

// sender is the identity behind one stream or call. That of a caller without an identity, on
// loopback, is nil and has no limits.
type sender struct {
	name       string
	meter      *meter
	credential *credential // nil for a call
}

// senders are the meters of all identities with open streams or calls. It is safe for concurrent
// use.
type senders struct {
	messagesPerSecond, registrationsPerSecond int

	mu     sync.Mutex // guards meters and their streams
	meters map[string]*meter
}

func newSenders(messagesPerSecond, registrationsPerSecond int) *senders {
	return &senders{messagesPerSecond: messagesPerSecond, registrationsPerSecond: registrationsPerSecond, meters: map[string]*meter{}}
}

// open returns the sender of a stream or call, or nil for a caller that is not checked. The caller
// calls close at its end.
func (s *senders) open(caller *authn.Caller) *sender {
	if caller.Unchecked {
		return nil
	}
	name := senderName(&caller.User)
	name, meter := s.openMeter(name)
	return &sender{name: name, meter: meter}
}

// senderName is the name of the user. The agents of all nodes may have tokens of one
// ServiceAccount, so the node and the pod of a token belong to the name.
func senderName(user *authn.User) string {
	identity := identityOf(user)
	name := user.Name
	if identity.Node != "" {
		name += " on node " + identity.Node
	}
	if identity.Pod != "" {
		name += " in pod " + identity.Pod
	}
	return name
}

// openMeter returns the name under which the meter must be closed.
func (s *senders) openMeter(name string) (string, *meter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.meters[name]
	if m == nil && len(s.meters) >= maxMeters {
		name = sharedMeter
		m = s.meters[name]
	}
	if m == nil {
		m = newMeter(s.messagesPerSecond, s.registrationsPerSecond)
		s.meters[name] = m
	}
	m.streams++
	return name, m
}

// tooManyOpen says whether a sender has more open streams and calls than one identity may have.
func (s *senders) tooManyOpen(sender *sender) bool {
	if sender == nil || sender.name == sharedMeter {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return sender.meter.streams > maxOpen
}

func (s *senders) close(sender *sender) {
	if sender != nil {
		s.closeMeter(sender.name, time.Now())
	}
}

// closeMeter removes the meter of a sender with its last stream, unless the sender is ahead of a
// rate: a new stream must not reset a limit. Each call also looks at a few other meters, so that
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
	tokens *rate.Limiter
	// registrations and newStreams are the sender's shares of what the replica admits.
	registrations, newStreams *limiter
	streams                   int // open streams and calls; guarded by senders
}

func newMeter(messagesPerSecond, registrationsPerSecond int) *meter {
	share := func(perSecond int) *limiter { return newLimiter(max(perSecond/identityShare, 1)) }
	return &meter{
		tokens:        rate.NewLimiter(rate.Limit(messagesPerSecond), rejectSeconds*messagesPerSecond),
		registrations: share(registrationsPerSecond), newStreams: share(streamsPerRegistration * registrationsPerSecond),
	}
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

// countRefused counts refused items as messages, because each costs an answer of the size of a
// message.
func (m *meter) countRefused(now time.Time, n int) {
	m.tokens.AllowN(now, min(n, max(int(m.tokens.TokensAt(now)), 0)))
}

// idle reports whether the sender is within all its rates.
func (m *meter) idle(now time.Time) bool {
	return m.tokens.TokensAt(now) >= float64(m.tokens.Burst()) && m.registrations.idle(now) && m.newStreams.idle(now)
}

// admitRegistrations returns how many of n registrations of a sender are admitted: no more than its
// share, so that one identity does not keep out the others.
func (s *Server) admitRegistrations(sender *sender, now time.Time, n int) int {
	if sender != nil {
		n = sender.meter.registrations.admit(now, n)
	}
	return s.registrations.admit(now, n)
}

// admitStream returns whether a sender may open a stream now.
func (s *Server) admitStream(sender *sender, now time.Time) bool {
	return (sender == nil || sender.meter.newStreams.admit(now, 1) == 1) && s.newStreams.admit(now, 1) == 1
}

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
			rpcerror.WithRetryAfter(backoff.Jitter(tooManyMessagesPause)))
	case sender.credential != nil && sender.credential.ended.Load():
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH, nil
	case result == overRate:
		return leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN, nil
	}
	return leasev1.StreamHeartbeatsResponse_DIRECTIVE_UNSPECIFIED, nil
}
