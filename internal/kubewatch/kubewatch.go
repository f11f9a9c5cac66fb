// Package kubewatch lists and watches Kubernetes objects for a reflector of client-go, and gives up
// a request of which nothing is heard.
//
// kube-apiserver sends a bookmark about once a minute on each watch. A watch that is silent for
// longer may have died without an error, for example because a firewall has dropped the connection.
// It ends after a silence limit, and the reflector opens the next one after its last event. A list,
// or a watch that is being opened, fails after the same limit, and the reflector tries again.
package kubewatch

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// DefaultSilenceLimit is longer than the minute between two bookmarks, and than the minute after
// which kube-apiserver itself ends a list.
const DefaultSilenceLimit = 90 * time.Second

// ErrNoAnswer is why a list, or the opening of a watch, is given up.
var ErrNoAnswer = errors.New("kube-apiserver does not answer")

// Values of the label cause.
const (
	causeSilent     = "silent"
	causeUnanswered = "unanswered"
)

// Metrics count what was given up. They are safe for concurrent use; nil counts nothing.
type Metrics struct{ reopens *prometheus.CounterVec }

// NewMetrics registers trivet_watch_reopens_total; nil leaves it unregistered.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	return &Metrics{reopens: promauto.With(registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "trivet_watch_reopens_total",
		Help: "How often a request of a kind was given up and repeated, by cause: silent (an open watch sent nothing); unanswered (a list or a new watch got no answer).",
	}, []string{"kind", "cause"})}
}

func (m *Metrics) count(kind, cause string) {
	if m != nil {
		m.reopens.WithLabelValues(kind, cause).Inc()
	}
}

// Client lists and watches objects of one kind.
type Client[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Config is how objects of one kind are watched.
type Config struct {
	// Kind is the label of the metric, for example "Node".
	Kind string
	// FieldSelector selects objects; empty selects all.
	FieldSelector string
	// SilenceLimit is how long nothing may be heard of a request; 0 means DefaultSilenceLimit.
	SilenceLimit time.Duration
	// OnAnswer is called when a list or the opening of a watch succeeds, with nil, or fails. It may
	// be nil.
	OnAnswer func(err error)
	// OnEvent is called for each event, bookmarks included. It may be nil.
	OnEvent func()
	// Metrics may be nil.
	Metrics *Metrics
}

// New returns the ListerWatcher of a reflector. clientset is what objects belongs to: a reflector
// asks it whether it can stream lists.
func New[L runtime.Object](objects Client[L], clientset any, cfg Config) cache.ListerWatcher {
	cfg.SilenceLimit = cmp.Or(cfg.SilenceLimit, DefaultSilenceLimit)
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		options.FieldSelector = cfg.FieldSelector
		return options
	}
	return cache.ToListWatcherWithWatchListSemantics(Persistent(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			list, err := answered(cfg, cancel, func() (L, error) { return objects.List(ctx, selected(options)) })
			if err != nil {
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.AllowWatchBookmarks = true
			ctx, cancel := context.WithCancel(ctx)
			incoming, err := answered(cfg, cancel, func() (watch.Interface, error) { return objects.Watch(ctx, selected(options)) })
			if err != nil {
				if incoming != nil {
					incoming.Stop()
				}
				cancel()
				return nil, err
			}
			return newStream(ctx, cancel, incoming, cfg), nil
		},
	}), clientset)
}

// answered sends a request and cancels it at the silence limit.
func answered[T any](cfg Config, cancel context.CancelFunc, send func() (T, error)) (T, error) {
	timer := time.AfterFunc(cfg.SilenceLimit, cancel)
	answer, err := send()
	if !timer.Stop() {
		cfg.Metrics.count(cfg.Kind, causeUnanswered)
		err = ErrNoAnswer // an answer that came at this moment is of a canceled request
	}
	if cfg.OnAnswer != nil {
		cfg.OnAnswer(err)
	}
	return answer, err
}

// stream passes the events of a watch, and ends when it is silent.
type stream struct {
	cfg      Config
	incoming watch.Interface
	events   chan watch.Event
	cancel   context.CancelFunc
}

func newStream(ctx context.Context, cancel context.CancelFunc, incoming watch.Interface, cfg Config) *stream {
	s := &stream{cfg: cfg, incoming: incoming, events: make(chan watch.Event), cancel: cancel}
	go s.run(ctx)
	return s
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// Stop implements watch.Interface.
func (s *stream) Stop() { s.cancel() }

func (s *stream) run(ctx context.Context) {
	defer close(s.events)
	defer s.cancel()
	defer s.incoming.Stop() // before cancel, which would be an event of its own
	silence := time.NewTimer(s.cfg.SilenceLimit)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-silence.C:
			s.cfg.Metrics.count(s.cfg.Kind, causeSilent)
			return
		case event, ok := <-s.incoming.ResultChan():
			if !ok {
				return
			}
			if s.cfg.OnEvent != nil {
				s.cfg.OnEvent()
			}
			select {
			case <-ctx.Done():
				return
			case s.events <- event:
			}
			silence.Reset(s.cfg.SilenceLimit) // the reflector's own time is no silence
		}
	}
}
