package engine

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Key names a Service.
type Key = index.Key

// Writer carries out one planned change.
//
// Write blocks until the change is stored or refused and returns the slice as
// stored, for a deletion the slice deleted. It is guarded: a change planned from
// an older state is refused with an error that wraps apply.ErrConflict. To
// delete what is gone is a success. It is called from several goroutines.
type Writer interface {
	Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error)
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
}

// Deps is what the engine needs.
type Deps struct {
	Writer Writer
	Logger *slog.Logger
	// Metrics gets trivet_slice_*; nil leaves them unregistered.
	Metrics prometheus.Registerer
}

// Engine keeps the slices of all Services. Its methods are safe for concurrent use.
type Engine struct {
	cfg     Config
	writer  Writer
	logger  *slog.Logger
	metrics *metrics
	cache   *cache
	ledger  *ledger
	running chan struct{} // closed by Run
}

// New returns an Engine with an empty cache; it starts nothing.
func New(cfg Config, deps Deps) (*Engine, error) {
	e := &Engine{
		cfg:     cfg,
		writer:  deps.Writer,
		logger:  deps.Logger,
		cache:   newCache(cfg.ManagedBy, cfg.Shards),
		ledger:  newLedger(cfg.Shards),
		running: make(chan struct{}),
	}
	var err error
	e.metrics, err = newMetrics(deps.Metrics, e.QueueLength)
	return e, err
}

// State is what is known of one Service.
type State struct {
	Service   *corev1.Service
	Unmanaged index.Unmanaged
	// Slices are ours, in no particular order.
	Slices []*discoveryv1.EndpointSlice
	// History is how passes over the Service went on this replica.
	History History
}

// State returns what is known of a Service; false when there is no such Service.
// Its objects are shared and must not be changed.
func (e *Engine) State(key Key) (State, bool) {
	service, slices, ok := e.cache.slices(key)
	if !ok {
		return State{}, false
	}
	return State{
		Service:   service,
		Unmanaged: index.Management(service),
		Slices:    slices,
		History:   e.ledger.historyOf(key),
	}, true
}

// Preview is what the next pass over a Service would do.
type Preview struct {
	Plan pack.Plan
	// MissingNodes hold up endpoints until they appear.
	MissingNodes []string
	// Behind says that the cache does not show our own last write yet, and a pass would wait for that.
	Behind bool
}

// Preview plans a Service without writing; false when there is no such Service.
// The plan is empty for a Service that is not managed.
func (e *Engine) Preview(key Key) (Preview, bool) {
	observed, ok := e.cache.observed(key)
	if !ok {
		return Preview{}, false
	}
	if index.Management(observed.Service) != index.Managed {
		return Preview{}, true
	}
	endpoints := desired.Resolve(observed.Service, observed.Candidates)
	return Preview{
		Plan:         pack.Make(e.input(observed, endpoints)),
		MissingNodes: endpoints.MissingNodes,
		Behind:       e.ledger.behind(key),
	}, true
}

// Keys returns the Services of a namespace, or of all for "", in order.
func (e *Engine) Keys(namespace string) []Key { return e.cache.keys(namespace) }

// Counts returns the sizes of some shards, held or not.
func (e *Engine) Counts(shards []int) index.Counts { return e.cache.counts(shards) }

// ResourceVersion is the newest one that was put in.
func (e *Engine) ResourceVersion() string { return e.cache.resourceVersion() }

// QueueLength is how many Services wait to be worked on; about 0 while no shard is held.
func (e *Engine) QueueLength() int { return e.ledger.queueLength() }

func (e *Engine) input(observed index.Observed, endpoints desired.Endpoints) pack.Input {
	namespace := observed.Service.Namespace
	return pack.Input{
		Service:   observed.Service,
		Endpoints: endpoints,
		Slices:    observed.Slices,
		Taken:     func(name string) bool { return e.cache.hasSlice(Key{Namespace: namespace, Name: name}) },
		Limit:     e.cfg.Limit,
		ManagedBy: e.cfg.ManagedBy,
	}
}
