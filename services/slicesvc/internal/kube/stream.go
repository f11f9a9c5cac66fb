package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

const (
	// defaultSilenceLimit is longer than the minute between two bookmarks of kube-apiserver.
	defaultSilenceLimit = 90 * time.Second
	// lateAfter is how long a wanted version may take before the stream is reopened for it. In a
	// busy cluster the next event is sooner.
	lateAfter = 50 * time.Millisecond
	// reopenPeriod is how often a stream that stays late, or cannot be reopened, is reopened.
	reopenPeriod = 5 * time.Second
	// probeTimeout makes kube-apiserver send a bookmark within about a second: it sends one two
	// seconds before the end of a watch, and none if that is in the past.
	probeTimeout = 3 * time.Second
	// minWatchTimeout is the shortest time after which kube-apiserver ends any other watch, and
	// half of the longest.
	minWatchTimeout = 5 * time.Minute
)

// reopenCause is why a stream was reopened.
type reopenCause string

const (
	// reopenedSilent: not even a bookmark came.
	reopenedSilent reopenCause = "silent"
	// reopenedLate: a term needs a version that the stream has not shown.
	reopenedLate reopenCause = "late"
)

var errNoAnswer = errors.New("kube-apiserver did not answer the request")

// openWatch requests a watch of one kind.
type openWatch func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)

// stream is a watch for a reflector that outlives its requests. It opens another request, which
// continues after the last event, if the current one is silent for too long or is late. The current
// request is used until kube-apiserver has answered the next one.
type stream struct {
	open         openWatch
	status       *kindStatus
	silenceLimit time.Duration
	results      chan watch.Event
	stop         context.CancelFunc

	// The goroutine of run owns all below.
	current *request
	// opened gets the answer of the next request; nil while there is none.
	opened chan openResult
	// version is that of the last event; empty while the first events list all objects.
	version string
	// repeated is the version up to which the current request repeats events of the one before.
	repeated string
}

// request is one open watch.
type request struct {
	watch.Interface
	cancel context.CancelFunc
	// probing says that the request ends soon and asks for a bookmark.
	probing bool
}

func (r *request) Stop() {
	r.cancel()
	r.Interface.Stop()
}

type openResult struct {
	request *request
	cause   reopenCause
	err     error
}

// newStream opens a watch. It ends with ctx, or when Stop is called.
func newStream(ctx context.Context, open openWatch, options metav1.ListOptions, status *kindStatus, silenceLimit time.Duration) (*stream, error) {
	ctx, stop := context.WithCancel(ctx)
	s := &stream{
		open:         open,
		status:       status,
		silenceLimit: silenceLimit,
		results:      make(chan watch.Event),
		stop:         stop,
	}
	if options.SendInitialEvents == nil || !*options.SendInitialEvents {
		s.version = options.ResourceVersion
	}
	var err error
	if s.current, err = s.request(ctx, options); err != nil {
		stop()
		return nil, err
	}
	go s.run(ctx)
	return s, nil
}

// ResultChan returns the events. The channel is closed when the stream has ended.
func (s *stream) ResultChan() <-chan watch.Event { return s.results }

// Stop ends the stream.
func (s *stream) Stop() { s.stop() }

// request opens a watch. kube-apiserver must answer within the silence limit.
func (s *stream) request(ctx context.Context, options metav1.ListOptions) (*request, error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(s.silenceLimit, cancel)
	opened, err := s.open(ctx, options)
	if !timer.Stop() && err == nil {
		opened.Stop()
		err = errNoAnswer
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &request{Interface: opened, cancel: cancel}, nil
}

// run passes events until ctx ends, or until no request is open. Then the reflector continues.
func (s *stream) run(ctx context.Context) {
	defer s.end()
	silence, late := time.NewTimer(s.silenceLimit), time.NewTimer(lateAfter)
	defer silence.Stop()
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-s.current.ResultChan():
			if !ok {
				if !s.continueAfter(ctx) {
					return
				}
				continue
			}
			silence.Reset(s.silenceLimit)
			if !s.pass(ctx, event) {
				return
			}
		case <-silence.C:
			if s.version == "" {
				s.fail(ctx, errNoAnswer) // the list cannot be continued
				return
			}
			s.reopen(ctx, reopenedSilent)
			silence.Reset(min(s.silenceLimit, reopenPeriod))
		case <-s.status.wanted:
			late.Reset(lateAfter)
		case <-late.C:
			if s.version != "" && s.status.isLate() {
				s.reopen(ctx, reopenedLate)
				late.Reset(reopenPeriod)
			}
		case result := <-s.opened:
			s.opened = nil
			if !s.replace(ctx, result) {
				return
			}
			if result.err == nil {
				silence.Reset(s.silenceLimit)
			}
		}
	}
}

func (s *stream) end() {
	s.stop()
	s.current.Stop()
	if s.opened != nil {
		if result := <-s.opened; result.request != nil {
			result.request.Stop()
		}
	}
	close(s.results)
}

// continueAfter returns whether the stream goes on after kube-apiserver has ended the request.
func (s *stream) continueAfter(ctx context.Context) bool {
	if s.opened == nil {
		if !s.current.probing {
			return false
		}
		s.reopen(ctx, "")
	}
	select {
	case <-ctx.Done():
		return false
	case result := <-s.opened:
		s.opened = nil
		return s.replace(ctx, result) && result.err == nil
	}
}

// reopen requests a watch that continues after the last event, unless one is being requested.
func (s *stream) reopen(ctx context.Context, cause reopenCause) {
	if s.opened != nil {
		return
	}
	probing := s.status.isLate()
	timeout := probeTimeout
	if !probing {
		timeout = minWatchTimeout + rand.N(minWatchTimeout)
	}
	seconds := int64(timeout.Seconds())
	options := metav1.ListOptions{ResourceVersion: s.version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds}
	opened := make(chan openResult, 1)
	s.opened = opened
	go func() {
		next, err := s.request(ctx, options)
		if err == nil {
			next.probing = probing
		}
		opened <- openResult{request: next, cause: cause, err: err}
	}()
}

// replace continues with the next request. It returns false if the reflector must list.
func (s *stream) replace(ctx context.Context, result openResult) bool {
	if result.err != nil {
		s.status.fail(result.err)
		if apierrors.IsResourceExpired(result.err) || apierrors.IsGone(result.err) {
			s.fail(ctx, result.err)
			return false
		}
		return true
	}
	s.status.countReopen(result.cause)
	s.current.Stop()
	s.current = result.request
	s.repeated = s.version
	return true
}

// pass passes an event to the reflector. It returns false if the stream has ended.
func (s *stream) pass(ctx context.Context, event watch.Event) bool {
	if object, err := meta.Accessor(event.Object); err == nil && event.Type != watch.Error {
		version := object.GetResourceVersion()
		if s.repeats(event.Type, version) {
			return true
		}
		if s.version != "" || object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			s.version = version
		}
	}
	return s.send(ctx, event)
}

// repeats returns whether the request before sent the event, too. A bookmark of its last version is
// no repetition: it says that nothing has changed since.
func (s *stream) repeats(event watch.EventType, version string) bool {
	if s.repeated == "" {
		return false
	}
	order := index.CompareVersions(version, s.repeated)
	return order < 0 || order == 0 && event != watch.Bookmark
}

// fail makes the reflector list again.
func (s *stream) fail(ctx context.Context, cause error) {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: cause.Error()}
	var answer apierrors.APIStatus
	if errors.As(cause, &answer) {
		status = answer.Status()
	}
	s.status.fail(cause)
	s.send(ctx, watch.Event{Type: watch.Error, Object: &status})
}

func (s *stream) send(ctx context.Context, event watch.Event) bool {
	select {
	case <-ctx.Done():
		return false
	case s.results <- event:
		return true
	}
}
