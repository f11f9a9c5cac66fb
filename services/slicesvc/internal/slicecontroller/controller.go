package slicecontroller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Key names a Service.
type Key = index.Key

var (
	// ErrNoService is returned for a Service that does not exist.
	ErrNoService = errors.New("no such service")
	// ErrNoPod is returned for a pod that does not exist.
	ErrNoPod = errors.New("no such pod")
	// ErrUnmanaged is returned for a Service that gets no slices from us.
	ErrUnmanaged = errors.New("service is not managed")
	// ErrUnread is wrapped by a pass that planned nothing, because a slice of the
	// Service could not be read of which the cache has an older state.
	ErrUnread = errors.New("slices of the service cannot be read")
	// ErrNotHeld is returned when the Service's shard is not held here, or not any more.
	ErrNotHeld = errors.New("shard is not held here")
)

// Writer carries out one planned change.
//
// Write blocks until the change is stored or refused and returns the slice as
// stored, for a deletion the slice deleted. Of what is stored it may return the
// change's slice with the metadata the apiserver gave it; either way the slice is
// kept and must not be changed afterwards. It is guarded: a change planned from
// an older state is refused with an error that wraps kube.ErrConflict. To
// delete what is gone is a success. It is called from several goroutines.
type Writer interface {
	Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error)
}

// Reader reads slices past the cache, as they are when it is asked. It is called
// from several goroutines.
type Reader interface {
	// Get returns a slice, nil when there is none of that name.
	Get(ctx context.Context, slice Key) (*discoveryv1.EndpointSlice, error)
	// List returns the metadata of all slices with our managed-by label, and the
	// resourceVersion they are of.
	List(ctx context.Context) (slices []metav1.ObjectMeta, resourceVersion string, err error)
}

// Pace says how long changes of pods wait, so that several are written at once.
// Its methods are called from several goroutines and must not block.
type Pace interface {
	// Wait returns how long a Service rests before its pass; 0 for not at all.
	Wait(now time.Time, due Due) time.Duration
	// Wrote tells how long a write took and how it went.
	Wrote(now time.Time, took time.Duration, err error)
}

// Due is a Service that is to have a pass.
type Due struct {
	// Since is when the first change came that the pass will answer.
	Since time.Time
	// Urgency is that of the latest change.
	Urgency index.Urgency
	// Depth is how many Services wait.
	Depth int
}

// Config is what the engine can be told.
type Config struct {
	// ManagedBy marks slices as ours.
	ManagedBy string
	// Shards is into how many shards the Services are divided.
	Shards int
	// Limit is how many endpoints a slice may hold.
	Limit int
	// Workers is how many Services are worked on at the same time, over all shards.
	Workers int
	// CleanUp deletes the slices of a Service that is not managed any more.
	CleanUp bool
	// CompactAfter is how long nothing may have been written for a Service before its
	// endpoints are moved into fewer slices; 0 for never.
	CompactAfter time.Duration
}

// Deps is what the engine needs.
type Deps struct {
	Writer Writer
	// Reader makes up for a cache that is late. Without one a term begins from what
	// the cache shows, and a conflict waits until it shows more.
	Reader Reader
	// Pace is when changes of pods are answered; nil for at once.
	Pace   Pace
	Logger *slog.Logger
	// Metrics gets trivet_slice_*; nil leaves them unregistered.
	Metrics prometheus.Registerer
	// Contended is called when somebody else has undone our writes for a Service so
	// often that it is left alone for a while; nil for nobody to tell. It must not block.
	Contended func(service *corev1.Service, by string)
	// Passed is called after every pass with what became of it; nil for nobody to
	// tell. It is called from several goroutines and must not block.
	Passed func(Pass)
}

// Pass is what became of a pass over a Service.
type Pass struct {
	Service *corev1.Service
	// Written are the changes that were carried out.
	Written []pack.Change
	// Topology is what became of its wish for hints, if the pass could tell.
	Topology []pack.FamilyHints
	// Err is what it failed with. Of a slice that was not as planned from it wraps
	// kube.ErrConflict, of one that could not be read ErrUnread.
	Err error
}

// Engine keeps the slices of all Services. Its methods are safe for concurrent use.
type Engine struct {
	cfg       Config
	deps      Deps
	logger    *slog.Logger
	metrics   *metrics
	cache     *cache
	ledger    *ledger
	feed      *feed
	roll      *roll
	budget    *budget
	leftovers *leftovers
	running   chan struct{} // closed by Run
}

// New returns an Engine with an empty cache; it starts nothing.
func New(cfg Config, deps Deps) (*Engine, error) {
	e := &Engine{
		cfg:       cfg,
		deps:      deps,
		logger:    deps.Logger,
		cache:     newCache(cfg.ManagedBy, cfg.Shards),
		ledger:    newLedger(cfg.Shards),
		feed:      newFeed(),
		budget:    newBudget(),
		leftovers: newLeftovers(),
		running:   make(chan struct{}),
	}
	if deps.Reader != nil {
		e.roll = newRoll(deps.Reader, cfg.Shards)
	}
	var err error
	e.metrics, err = newMetrics(deps.Metrics, e.QueueLength)
	return e, err
}

// Keys returns the Services of a namespace, or of all for "", in order.
func (e *Engine) Keys(namespace string) []Key { return e.cache.keys(namespace) }

// Counts returns the sizes of some shards, held or not.
func (e *Engine) Counts(shards []int) index.Counts { return e.cache.counts(shards) }

// ResourceVersion is the newest one that was put in.
func (e *Engine) ResourceVersion() string { return e.cache.resourceVersion() }

// QueueLength is how many Services wait to be worked on; about 0 while no shard is held.
func (e *Engine) QueueLength() int { return e.ledger.queueLength() }
