package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

const (
	// The API allows this many registrations and beats in one message.
	maxRegistrations = 1000
	maxBeats         = 10_000
	// maxMessageBytes is when a message is full, before its last holder: servers accept a MiB.
	maxMessageBytes = 768 << 10
	// endTimeout is how long the agent waits for the server at the end of a stream.
	endTimeout = time.Second
	// minAnswerTimeout lets a server with short intervals pause without losing all its streams.
	minAnswerTimeout = time.Second
	// minConnectTimeout is longer than a busy server lets a connection wait for its handshake.
	minConnectTimeout = 4 * time.Second
)

var (
	errNoAnswer = errors.New("no answer in time")
	errResponse = errors.New("the response does not match the request")
	errReauth   = errors.New("the server asks for new credentials")
)

// movedError means that the server has asked the client to leave the stream.
type movedError struct{ to string }

func (e *movedError) Error() string {
	if e.to == "" {
		return "the server leads no shard any more"
	}
	return "the server redirects to " + e.to
}

// stream is one stream to a target. Its fields belong to the goroutine in run, except the channels.
type stream struct {
	*Agent
	target *target
	rpc    grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]
	// pending are the requests without a response, oldest first.
	pending []pendingRequest
	// registering is set while a registration is pending.
	registering bool
	// registrationsPerMessage and handlesPerMessage are what the server accepts.
	registrationsPerMessage, handlesPerMessage int
	// described is set after the first message, which describes the client.
	described bool
	// watchdog cancels the stream, also during a blocked send, when the oldest pending request gets
	// no response in time, or when there is no connection in time.
	watchdog *time.Timer
	// classes are the classes with registered holders. The holders of a class beat together in
	// their own messages, so that each class keeps its interval.
	classes map[string]*schedule
	// interval is the shortest interval of all classes, or the last one if no class is left; 0
	// before the first.
	interval time.Duration

	// now is when the current response arrived. jitter is between 0 and 1; all holders of the
	// response share it, so that they register again in one message.
	now    time.Time
	jitter float64

	beatTimer     *time.Timer // fires when the next class is due
	registerTimer *time.Timer // fires when the next holder may register
	responses     chan *leasev1.StreamHeartbeatsResponse
	failed        chan error // gets one error at the end
}

// schedule is when the holders of a class beat next.
type schedule struct {
	interval time.Duration // of the last grant
	next     time.Time
	// resting is set while no holder of the class has a report to send.
	resting bool
}

type pendingRequest struct {
	sequence   uint64
	registered []beating
	class      string // of the beats; empty if there are none
	beats      []beating
	sent       time.Time
}

func newStream(a *Agent, t *target, rpc grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse], watchdog *time.Timer) *stream {
	beatTimer, registerTimer := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	beatTimer.Stop()
	registerTimer.Stop()
	return &stream{
		Agent: a, target: t, rpc: rpc, watchdog: watchdog, classes: map[string]*schedule{},
		registrationsPerMessage: maxRegistrations, handlesPerMessage: maxBeats,
		beatTimer: beatTimer, registerTimer: registerTimer,
		responses: make(chan *leasev1.StreamHeartbeatsResponse), failed: make(chan error, 1),
	}
}

// run returns when the stream fails, or the target has no holder any more; the latter is no error.
func (s *stream) run(ctx context.Context) error {
	defer s.beatTimer.Stop()
	defer s.registerTimer.Stop()
	s.resetWatchdog() // the connection stands; no request is pending
	s.target.signal()
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.failed:
			return err
		case response := <-s.responses:
			err = s.handle(response)
		case <-s.beatTimer.C:
			err = s.beat(time.Now())
		case <-s.registerTimer.C:
			err = s.register()
		case <-s.target.changed:
			if s.router.closeIfEmpty(s.target) {
				return nil
			}
			if s.cfg.BeatOnReport {
				s.wake()
			}
			err = s.register()
		}
		if err != nil {
			return s.lastError(err)
		}
	}
}

// end ends a stream without holders in order, so that the server does not count it as a lost
// connection. It waits for endTimeout at most.
func (s *stream) end() {
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	if s.rpc.CloseSend() != nil {
		return // the stream has ended
	}
	for {
		select {
		case <-s.responses: // its holders have left
		case err := <-s.failed:
			_ = err // the stream has ended, for whatever reason
			return
		case <-timer.C:
			return
		}
	}
}

// lastError returns why the server has ended the stream, if a send says only that it has ended.
func (s *stream) lastError(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		select {
		case response := <-s.responses:
			if err := s.handle(response); err != nil {
				return err
			}
		case err := <-s.failed:
			return err
		}
	}
}

// receive passes responses to run until the stream ends, which is always an error.
func (s *stream) receive(ctx context.Context) error {
	for {
		response, err := s.rpc.Recv()
		if err != nil {
			return fmt.Errorf("receive response: %w", err)
		}
		select {
		case s.responses <- response:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// register registers the next holders. It sends one message at a time: responses are as large as
// requests, and a client that sends without reading blocks a server that sends without reading.
func (s *stream) register() error {
	if s.registering {
		return nil
	}
	now := time.Now()
	holders, next := s.router.nextRegistrations(s.target, now, s.registrationsPerMessage)
	resetTimer(s.registerTimer, next)
	if len(holders) == 0 {
		return nil
	}
	s.registering = true
	request := &leasev1.StreamHeartbeatsRequest{}
	pending := pendingRequest{}
	for _, b := range holders {
		request.Registrations = append(request.Registrations, &leasev1.Registration{
			Holder: &leasev1.Holder{Class: b.holder.Class, Name: b.holder.Name, BootId: b.holder.BootID}, Report: b.report.message(now),
		})
	}
	pending.registered = holders
	return s.send(request, pending)
}

// beat renews the leases of all classes that are due.
func (s *stream) beat(now time.Time) error {
	for _, class := range slices.Sorted(maps.Keys(s.classes)) {
		schedule := s.classes[class]
		if schedule.next.After(now) {
			continue
		}
		holders := s.router.registeredHolders(s.target, class, now)
		if len(holders) == 0 {
			s.rest(class)
			continue
		}
		schedule.next = now.Add(s.cfg.spacing(schedule.interval)) // a late response does not delay the next beat
		for len(holders) > 0 {
			request, remaining := s.nextBeats(holders, now, cmp.Or(s.cfg.AgeTolerance, schedule.interval))
			if err := s.send(request, pendingRequest{class: class, beats: holders[:len(holders)-len(remaining)]}); err != nil {
				return err
			}
			holders = remaining
		}
	}
	s.resetBeatTimer()
	return nil
}

// rest ends the beats of a class without a holder that is due. With Config.BeatOnReport the class
// beats again because of a report.
func (s *stream) rest(class string) {
	if s.cfg.BeatOnReport {
		s.classes[class].resting = true
		return
	}
	delete(s.classes, class)
}

// wake ends the rest of all classes, because there may be a report.
func (s *stream) wake() {
	for _, schedule := range s.classes {
		schedule.resting = false
	}
	s.resetBeatTimer()
}

// nextBeats returns a message with the beats of the first holders, and the remaining holders. A
// holder is named by its bare handle if its report says no more.
func (s *stream) nextBeats(holders []beating, now time.Time, tolerance time.Duration) (*leasev1.StreamHeartbeatsRequest, []beating) {
	request := &leasev1.StreamHeartbeatsRequest{}
	n, size := 0, 0
	for ; n < min(len(holders), s.handlesPerMessage) && size < maxMessageBytes; n++ {
		b := &holders[n]
		if !b.explicit && b.report.bare(now, tolerance) {
			request.Handles = append(request.Handles, b.handle)
			continue
		}
		request.Reports = append(request.Reports, &leasev1.HandleReport{Handle: b.handle, Report: b.report.message(now)})
		size += b.report.size()
	}
	return request, holders[n:]
}

// resetBeatTimer sets the timer to the class that is due first, and interval to the shortest one.
func (s *stream) resetBeatTimer() {
	var next time.Time
	shortest := time.Duration(0)
	for _, schedule := range s.classes {
		if !schedule.resting {
			next = earlier(next, schedule.next)
		}
		if shortest == 0 || schedule.interval < shortest {
			shortest = schedule.interval
		}
	}
	if shortest > 0 {
		s.interval = shortest
	}
	resetTimer(s.beatTimer, next)
}

func (s *stream) send(request *leasev1.StreamHeartbeatsRequest, p pendingRequest) error {
	request.Sequence = s.sequence.Add(1)
	if !s.described {
		s.described = true
		request.ClientInfo = &metav1.ClientInfo{Cluster: s.cfg.Cluster, Agent: s.cfg.Name, Version: s.cfg.Version, Mode: s.cfg.Mode}
	}
	p.sequence, p.sent = request.Sequence, time.Now()
	s.pending = append(s.pending, p)
	if len(s.pending) == 1 {
		s.resetWatchdog()
	}
	s.history.update(func(status *Status) {
		status.Beats += uint64(len(p.beats))
		status.Registrations += uint64(len(p.registered))
	})
	if err := s.rpc.Send(request); err != nil {
		return fmt.Errorf("send heartbeats: %w", err)
	}
	return nil
}

// patience is how long a response may take. With Config.BeatOnReport it is shorter: the beats may
// be rarer than the interval, so that less of the grace period is left.
func (c *Config) patience(interval time.Duration) time.Duration {
	if c.BeatOnReport {
		return interval
	}
	return 2 * interval
}

// resetWatchdog sets the watchdog to the oldest pending request, or stops it.
func (s *stream) resetWatchdog() {
	if len(s.pending) == 0 {
		s.watchdog.Stop()
		return
	}
	timeout := s.router.answerTimeout()
	if s.interval > 0 {
		timeout = max(s.cfg.patience(s.interval), minAnswerTimeout)
	}
	s.watchdog.Reset(time.Until(s.pending[0].sent.Add(timeout)))
}

// unanswered says whether the oldest request waits for longer than a server needs that answers.
func (s *stream) unanswered(now time.Time) bool {
	return len(s.pending) > 0 && now.Sub(s.pending[0].sent) >= minAnswerTimeout
}
