package agent

import (
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

const (
	// rejectedPause is when a rejected holder registers again if the server does not say.
	rejectedPause = time.Minute
	// minSupersededPause is the least pause of a holder whose name another boot has.
	minSupersededPause = time.Second
	// minInterval bounds the granted interval: a server that grants less must not be flooded.
	minInterval = 10 * time.Millisecond
	// The agent acts on these reasons of the API, and classifies all others by their code.
	reasonSuperseded              = "SUPERSEDED"
	reasonLeaseNotFound           = "LEASE_NOT_FOUND"
	reasonNotLeader               = "NOT_LEADER"
	reasonNoLeader                = "NO_LEADER"
	reasonRegistrationRateLimited = "REGISTRATION_RATE_LIMITED"
	reasonNotAuthorized           = "NOT_AUTHORIZED"
	reasonNotAuthenticated        = "NOT_AUTHENTICATED"
)

// handle applies a response. An error ends the stream.
func (s *stream) handle(response *leasev1.StreamHeartbeatsResponse) error {
	if response.Directive == leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE {
		s.countDirective(response.Directive)
		return &movedError{to: response.RedirectAddress}
	}
	if response.Sequence == 0 {
		s.countDirective(response.Directive)
		return s.follow(response.Directive) // it answers no request
	}
	if len(s.pending) == 0 || s.pending[0].sequence != response.Sequence || len(s.pending[0].registered) != len(response.RegistrationResults) {
		return errResponse
	}
	request := s.pending[0]
	s.pending = s.pending[1:]
	s.now, s.jitter = time.Now(), rand.Float64()
	s.applyLimits(response.Limits)
	var err error
	s.router.update(func() { err = s.apply(request, response) })
	if err != nil {
		return err
	}
	if len(request.registered) > 0 {
		s.registering = false
		s.target.signal() // more holders may be waiting
	}
	if response.Grant != nil && request.class != "" {
		interval := intervalOf(response.Grant)
		s.classes[request.class] = &schedule{interval: interval, next: s.now.Add(s.spacingAfter(interval, response.Directive))}
		s.recordGrant(response.Grant)
	}
	s.resetWatchdog()
	s.recordAnswer(response.Directive)
	s.logRefused(response)
	return s.follow(response.Directive)
}

// follow acts on a directive. It ignores those of a newer API.
func (s *stream) follow(directive leasev1.StreamHeartbeatsResponse_Directive) error {
	switch directive {
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC:
		s.router.registerAgain(s.target)
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH:
		return errReauth
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN:
		// The next beat follows this response by a whole interval, so only the log is left.
		s.cfg.Logger.Warn("server asks for fewer heartbeats", "target", s.target.address, "interval", s.interval)
	}
	return nil
}

// applyLimits makes later messages as small as the server asks. It ignores limits above those of
// the API.
func (s *stream) applyLimits(limits *leasev1.StreamLimits) {
	if n := int(limits.GetRegistrationsPerMessage()); n > 0 {
		s.registrationsPerMessage = min(n, maxRegistrations)
	}
	if n := int(limits.GetHandlesPerMessage()); n > 0 {
		s.handlesPerMessage = min(n, maxBeats)
	}
}

func (s *stream) recordGrant(grant *leasev1.Grant) {
	s.resetBeatTimer()
	s.router.ttl.Store(int64(grant.Ttl.AsDuration()))
	s.history.update(func(status *Status) {
		status.Epoch, status.Interval, status.TTL = grant.Epoch, intervalOf(grant), grant.Ttl.AsDuration()
	})
}

// recordAnswer ends the backoff of the target. An answer that asks for new credentials does not:
// the client might have no others.
func (s *stream) recordAnswer(directive leasev1.StreamHeartbeatsResponse_Directive) {
	first := s.router.markAnswered(s.target)
	s.history.update(func(status *Status) {
		status.Target, status.LastAnswer = s.target.address, time.Now()
		status.count(directive)
		if first {
			status.Streams++
		}
	})
	if directive == leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH {
		return
	}
	if first {
		s.failures.answered()
		s.backoffs.succeed(s.target.address, s.interval, time.Duration(s.router.ttl.Load()))
		s.cfg.Logger.Info("server answers heartbeats", "target", s.target.address)
	}
}

// directiveName returns the directive as metrics name it. All directives of a newer API have one
// name.
func directiveName(directive leasev1.StreamHeartbeatsResponse_Directive) string {
	switch directive {
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_UNSPECIFIED:
		return "none"
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE:
		return "move"
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN:
		return "slow_down"
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC:
		return "resync"
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH:
		return "reauth"
	}
	return "unknown"
}

// countDirective counts a response that answers no request, or that ends the stream.
func (s *stream) countDirective(directive leasev1.StreamHeartbeatsResponse_Directive) {
	s.history.update(func(status *Status) { status.count(directive) })
}

// logRefused logs how many holders another boot has superseded, and one of the holders that the
// credentials of the client do not permit.
func (s *stream) logRefused(response *leasev1.StreamHeartbeatsResponse) {
	refused, superseded := 0, 0
	var first *leasev1.Rejection
	count := func(why *leasev1.Rejection) {
		switch {
		case why == nil:
		case actionOf(why) == wait:
			superseded++
		case actionOf(why) == leave:
			if refused++; first == nil {
				first = why
			}
		}
	}
	for _, result := range response.RegistrationResults {
		count(result.GetRejection())
	}
	for _, handle := range response.RejectedHandles {
		count(handle.Rejection)
	}
	if superseded > 0 {
		s.cfg.Logger.Warn("another boot beats under the same name; its lease must end before a holder registers again",
			"target", s.target.address, "holders", superseded)
	}
	if refused > 0 {
		s.cfg.Logger.Warn("server refuses holders of this client; they register again later, on a new connection",
			"target", s.target.address, "holders", refused, "reason", first.Reason, "first", first.Message)
	}
}

// spacing is the time from one beat to the next. A report may be sent after half of an interval,
// because a caller that reports once in an interval is sometimes early; servers count an earlier
// beat as too early.
func (c *Config) spacing(interval time.Duration) time.Duration {
	if c.BeatOnReport {
		return interval / 2
	}
	return interval
}

func (s *stream) spacingAfter(interval time.Duration, directive leasev1.StreamHeartbeatsResponse_Directive) time.Duration {
	if directive == leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN {
		return interval
	}
	return s.cfg.spacing(interval)
}

func intervalOf(grant *leasev1.Grant) time.Duration {
	return max(grant.GetNextInterval().AsDuration(), minInterval)
}

// apply applies the results of one response to the router, inside router.update.
func (s *stream) apply(request pendingRequest, response *leasev1.StreamHeartbeatsResponse) error {
	for i, result := range response.RegistrationResults {
		b := request.registered[i]
		if err := s.applyRegistration(b.holder, result); err != nil {
			return err
		}
		b.handle = result.Handle
		request.beats = append(request.beats, b)
	}
	for _, rejected := range response.RejectedHandles {
		s.router.rejectHandle(s.target, rejected.Handle, s.rejection(rejected.Rejection, 0))
	}
	if response.Directive != leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC { // which stands for a rejection of each handle
		s.router.accept(s.target, request.beats, request.sent, s.now)
	}
	if response.Grant != nil && request.class != "" {
		s.router.intervals[request.class] = intervalOf(response.Grant)
	}
	return nil
}

func (s *stream) applyRegistration(h Holder, result *leasev1.RegistrationResult) error {
	grant, rejected := result.GetGrant(), result.GetRejection()
	switch {
	case grant != nil && result.Handle != 0:
		s.router.setHandle(s.target, h, result.Handle)
		s.scheduleFirstBeat(h.Class, grant)
	case rejected != nil:
		s.router.rejectHolder(s.target, h, s.rejection(rejected, s.cfg.MinBackoff))
	default:
		return errResponse
	}
	return nil
}

// scheduleFirstBeat makes the class beat no later than the grant of a new holder says.
func (s *stream) scheduleFirstBeat(class string, grant *leasev1.Grant) {
	interval := intervalOf(grant)
	s.router.intervals[class] = max(s.router.interval(class), interval) // the first interval is shorter than later ones
	next := s.now.Add(s.cfg.spacing(interval))
	if beats := s.classes[class]; beats == nil {
		s.classes[class] = &schedule{interval: interval, next: next}
	} else if next.Before(beats.next) {
		beats.next = next
	}
	s.recordGrant(grant)
}

// rejection classifies a rejection. A retry pauses for minPause at least.
func (s *stream) rejection(rejected *leasev1.Rejection, minPause time.Duration) rejection {
	if actionOf(rejected) == wait {
		return rejection{reason: rejected.GetReason(), action: wait, retryAt: s.now.Add(s.supersededPause(rejected))}
	}
	pause := s.retryAfter(rejected)
	if actionOf(rejected) == leave {
		pause += time.Duration(s.jitter * float64(pause/2))
	}
	return rejection{
		reason: rejected.GetReason(), action: actionOf(rejected), retryAt: s.now.Add(max(pause, minPause)),
		redirectAddress: rejected.GetRedirectAddress(), moveAt: s.moveAt(rejected),
		ownerRetryAt: func(attempt int) time.Time {
			own := s.backoffs.unknownOwner(attempt, s.jitter)
			return s.now.Add(max(own, min(rejected.GetRetryAfter().AsDuration(), maxServerPause)))
		},
	}
}

func actionOf(rejected *leasev1.Rejection) action {
	switch rejected.GetReason() {
	case reasonSuperseded:
		return wait
	case reasonNotAuthorized, reasonNotAuthenticated:
		return leave
	case reasonNotLeader, reasonNoLeader:
		return move
	case reasonLeaseNotFound, reasonRegistrationRateLimited:
		return retry
	}
	// A reason of a newer API, or one that needs a change.
	switch rejected.GetCode() {
	case code.Code_PERMISSION_DENIED, code.Code_UNAUTHENTICATED:
		return leave
	case code.Code_FAILED_PRECONDITION:
		if rejected.GetRedirectAddress() != "" {
			return move
		}
	case code.Code_UNAVAILABLE:
		if rejected.GetRetryAfter() == nil {
			return move // to any target, after growing pauses
		}
	case code.Code_ABORTED:
		if rejected.GetRetryAfter() == nil {
			return stop
		}
		return wait
	}
	return retry
}

// moveAt is when a holder moves to another replica; zero for at once. If its beat was forwarded,
// its lease exists there already. It then moves at a random time within half an interval, so that
// not all holders of a shard arrive at once.
func (s *stream) moveAt(rejected *leasev1.Rejection) time.Time {
	if !rejected.GetForwarded() {
		return time.Time{}
	}
	return s.now.Add(time.Duration(s.jitter * float64(s.interval/2)))
}

// supersededPause is when a holder registers again while another boot has its name: when the server
// says that the lease of the other boot can have ended, or else after a minute, plus up to a half.
// It is at least an interval and at least a second, and at most a minute and a half.
func (s *stream) supersededPause(rejected *leasev1.Rejection) time.Duration {
	pause := rejectedPause
	if rejected.GetRetryAfter() != nil {
		pause = min(max(rejected.GetRetryAfter().AsDuration(), s.interval, minSupersededPause), maxServerPause)
	}
	return pause + time.Duration(s.jitter*float64(pause/2))
}

// retryAfter is at least what the server asks for, up to maxServerPause. Holders that the server
// cannot serve now return at different times.
func (s *stream) retryAfter(rejected *leasev1.Rejection) time.Duration {
	pause := min(rejected.GetRetryAfter().AsDuration(), maxServerPause)
	switch {
	case rejected.GetReason() == reasonLeaseNotFound, rejected.GetCode() == code.Code_NOT_FOUND:
		return pause // 0: the holder can be registered again at once
	case rejected.GetRetryAfter() == nil || pause < 0:
		return rejectedPause
	case rejected.GetCode() == code.Code_UNAVAILABLE:
		return pause + time.Duration(s.jitter*float64(pause/2))
	}
	return pause
}
