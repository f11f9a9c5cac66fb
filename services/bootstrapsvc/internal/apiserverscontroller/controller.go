package apiserverscontroller

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// Names of the loops, as --loops takes them.
const (
	ProbeLoop     = "apiserver-probe"
	AdoptionLoop  = "masterlease-probe"
	EndpointsLoop = "kubernetes-endpoints"
)

// readTimeout bounds the reads of one pass: half of a pass.
const readTimeout = baselinecontroller.PassTimeout / 2

// endpointsPeriod is that of kube-apiserver.
const endpointsPeriod = 10 * time.Second

// Another writer of the EndpointSlice is answered at once a few times and then once a second.
// Otherwise two writers that disagree would write as fast as they can.
const (
	answersBurst     = 3
	answersPerSecond = 1
)

func endpointsReasons() []baseline.Reason {
	return []baseline.Reason{
		apiservers.NoServerReports, apiservers.NoServerReady, apiservers.FamilyMismatch, apiservers.FamilyUnknown,
		apiservers.NotRoutable, apiservers.PortMismatch, apiservers.SliceForeign, apiservers.StaticUnresolved,
		apiservers.Kept, apiservers.CountExceeded, apiservers.LastServerKept,
		apiservers.KeyUnleased, apiservers.KeyDead, apiservers.Silent, apiservers.KeyUnreadable,
	}
}

// Controller observes the kube-apiservers and reconciles the endpoints of default/kubernetes. Its
// methods are safe for concurrent use.
type Controller struct {
	Config
	Deps
	metrics   *metrics
	sidecar   *sidecar
	adoption  *adoption // nil without Config.AdoptMasterLeases
	resolver  *resolver
	endpoints *baselinecontroller.Reconciler
	// unreported probes published addresses without a key. Only Live keeps them for their probes.
	unreported *unreported
	// serviceIP is the last known ClusterIP of default/kubernetes; never nil.
	serviceIP atomic.Pointer[netip.Addr]
}

// New returns a controller, registers its metrics and starts nothing.
func New(cfg Config, deps Deps) *Controller {
	metrics := newMetrics(deps.Metrics)
	c := &Controller{
		Config: cfg, Deps: deps, metrics: metrics,
		sidecar: &sidecar{Config: cfg, Deps: deps}, resolver: &resolver{lookupIP: deps.LookupIP},
	}
	c.endpoints = baselinecontroller.NewReconciler(baselinecontroller.ReconcilerConfig{
		Loop: EndpointsLoop, DryRun: deps.DryRun, Period: endpointsPeriod, Writer: deps.Objects, Reasons: endpointsReasons(),
		Observe: c.observe(nil), Logger: deps.Logger, Tracer: deps.Tracer, Metrics: deps.ReconcilerMetrics, Applied: deps.Applied,
	})
	c.serviceIP.Store(&netip.Addr{})
	c.unreported = newUnreported(cfg, deps, c.endpoints.Trigger)
	if cfg.AdoptMasterLeases {
		c.adoption = newAdoption(cfg, deps, c.endpoints.Trigger)
	}
	return c
}

// ProbeLoops run on every replica.
func (c *Controller) ProbeLoops() []loop.Loop {
	return []loop.Loop{{
		Name: ProbeLoop, Scope: loop.Always, Stall: c.sidecar.stall(), Run: c.sidecar.run,
		Doc: "Probes the kube-apiserver beside this replica and publishes its readiness in etcd.",
	}, {
		Name: AdoptionLoop, Scope: loop.Always, Stall: c.sidecar.stall(), Run: c.adoption.run,
		Doc: "With --adopt-master-leases, probes kube-apiservers that have no sidecar yet.",
	}}
}

// EndpointsLoop runs on the leader.
func (c *Controller) EndpointsLoop() loop.Loop {
	return loop.Loop{
		Name: EndpointsLoop, Scope: loop.Leader, Stall: time.Minute, ShadowScope: loop.Leader,
		Run: func(ctx context.Context, report loop.Report) error {
			return c.runEndpoints(ctx, report, c.endpoints.Run)
		},
		Shadow: func(ctx context.Context, report loop.Report) error {
			return c.runEndpoints(ctx, report, c.endpoints.Compare)
		},
		Doc: "Keeps the endpoints of default/kubernetes at the ready kube-apiservers.",
	}
}

// Reconciler is the reconciler of the endpoints loop.
func (c *Controller) Reconciler() *baselinecontroller.Reconciler { return c.endpoints }

// Forget drops what only a leader knows. Call it when a term has ended.
func (c *Controller) Forget() {
	c.endpoints.Forget()
	c.unreported.forget()
	c.metrics.servers.Reset()
}

// ListServers returns all known servers with the TTLs of their keys. It asks etcd and DNS only.
func (c *Controller) ListServers(ctx context.Context) (ServerList, error) {
	return c.listServers(ctx, c.Keys.List)
}

// WatchServers calls changed when a key of a sidecar changes. It blocks until ctx ends. changed
// must not block.
func (c *Controller) WatchServers(ctx context.Context, changed func()) { c.Keys.Watch(ctx, changed) }

// EndpointsObservation is what ObserveEndpoints found.
type EndpointsObservation struct {
	Kind     apiservers.Kind
	Servers  ServerList
	Snapshot apiservers.Snapshot
	Plan     apiservers.Plan
	// Incomplete says what could not be read, and why. Instead of the Service, its last known
	// ClusterIP counts. For the Endpoints object or the slices, nothing is planned.
	Incomplete error
}

// noteFunc receives what was read: the servers, the published addresses, and whether both the
// Endpoints object and the slices were read.
type noteFunc func(list ServerList, published []netip.Addr, complete bool)

// ObserveEndpoints reads the known servers and the published endpoints, and plans the changes.
func (c *Controller) ObserveEndpoints(ctx context.Context) (EndpointsObservation, error) {
	return c.observeLeaving(ctx, nil, nil)
}

// observeLeaving is ObserveEndpoints while the addresses of the own server leave. It reads the
// servers before the objects. A server that appears in between is found by the next pass, and the
// resourceVersions guard the writes. note, unless it is nil, receives what was read.
func (c *Controller) observeLeaving(ctx context.Context, leaving []netip.Addr, note noteFunc) (EndpointsObservation, error) {
	list, err := c.listServers(ctx, c.Keys.Read)
	if err != nil {
		return EndpointsObservation{}, err
	}
	return c.plan(ctx, list, leaving, note)
}

// PlanEndpoints compares the published endpoints with a list of servers. leaving is as in
// apiservers.Want.
func (c *Controller) PlanEndpoints(ctx context.Context, list ServerList, leaving []netip.Addr) (EndpointsObservation, error) {
	return c.plan(ctx, list, leaving, nil)
}

func (c *Controller) plan(ctx context.Context, list ServerList, leaving []netip.Addr, note noteFunc) (EndpointsObservation, error) {
	kind := c.Policy.Kind
	snapshot := apiservers.Snapshot{Servers: list.Candidates(kind)}
	serviceIP, incomplete := c.readObjects(ctx, &snapshot)
	if incomplete != nil && (!serviceIP.IsValid() || snapshot.EndpointsUnread && snapshot.SlicesUnread) {
		return EndpointsObservation{}, incomplete
	}
	published := snapshot.Published()
	if note != nil {
		note(list, published, !snapshot.EndpointsUnread && !snapshot.SlicesUnread)
	}
	if kind == apiservers.Live {
		snapshot.Unreported = c.unreported.list(list, published)
	}
	plan := apiservers.NewPlan(apiservers.Want{
		Policy: c.Policy, ServiceIP: serviceIP, DualStack: c.DualStack, ExtraPorts: c.ExtraPorts,
		Leaving: leaving, Unresolved: list.Unresolved,
	}, snapshot)
	plan.Changes = append(plan.Changes, list.Reports...)
	return EndpointsObservation{Kind: kind, Servers: list, Snapshot: snapshot, Plan: plan, Incomplete: incomplete}, nil
}

// readObjects reads the published endpoints into a snapshot, and returns the ClusterIP of the
// Service. The reads run at the same time, so that one that hangs leaves time for the writes of
// what the others show.
func (c *Controller) readObjects(ctx context.Context, snapshot *apiservers.Snapshot) (serviceIP netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var serviceErr, endpointsErr, slicesErr error
	baselinecontroller.Together(
		func() { serviceIP, serviceErr = c.observeServiceIP(ctx) },
		func() { snapshot.Endpoints, endpointsErr = c.Objects.Endpoints(ctx) },
		func() { snapshot.Slices, slicesErr = c.Objects.EndpointSlices(ctx) },
	)
	snapshot.EndpointsUnread, snapshot.SlicesUnread = endpointsErr != nil, slicesErr != nil
	return serviceIP, errors.Join(serviceErr, endpointsErr, slicesErr)
}

// observeServiceIP returns the ClusterIP of default/kubernetes, which gives the address family. If
// the Service cannot be read, it returns the last known one and the error.
func (c *Controller) observeServiceIP(ctx context.Context) (netip.Addr, error) {
	service, err := c.ObserveService(ctx)
	if err != nil {
		return *c.serviceIP.Load(), err
	}
	c.serviceIP.Store(&service.ClusterIP)
	return service.ClusterIP, nil
}

func (c *Controller) observe(leaving []netip.Addr) baselinecontroller.Observe {
	return func(ctx context.Context) (baselinecontroller.Observation, error) {
		found, err := c.observeLeaving(ctx, leaving, c.unreported.update)
		if err != nil {
			return baselinecontroller.Observation{}, err
		}
		for state, count := range found.Servers.countByState() {
			c.metrics.servers.WithLabelValues(state).Set(float64(count))
		}
		return baselinecontroller.Observation{
			Changes: found.Plan.Changes, Counts: found.counts(), Incomplete: found.Incomplete,
		}, nil
	}
}

func (o EndpointsObservation) counts() map[string]int64 {
	ready := 0
	for _, server := range o.Servers.Servers {
		if server.Ready {
			ready++
		}
	}
	counts := map[string]int64{"apiservers": int64(len(o.Servers.Servers)), "ready_apiservers": int64(ready)}
	if !o.Snapshot.SlicesUnread {
		counts["endpoint_addresses"] = int64(len(apiservers.PublishedInSlices(o.Snapshot.Slices)))
	}
	return counts
}

// WithdrawOwn removes the address of the kube-apiserver beside this replica from the endpoints.
// Only the leader may call it, after the probe loop has ended. It does nothing on a replica without
// a kube-apiserver, or if the address stays because of Config.KeepReady.
func (c *Controller) WithdrawOwn(ctx context.Context) error {
	if !c.Address.Primary.IsValid() || c.sidecar.keeps.Load() {
		return nil
	}
	_, err := c.endpoints.ReconcileWith(ctx, c.observe(c.Address.All()))
	return err
}

func (c *Controller) runEndpoints(ctx context.Context, report loop.Report, reconcile func(context.Context, loop.Report) error) error {
	defer c.resolver.remember()()
	ctx, cancel := context.WithCancel(ctx)
	written := make(chan struct{}, 1)
	var watches sync.WaitGroup
	watches.Go(func() { c.Keys.Watch(ctx, c.endpoints.Trigger) })
	watches.Go(func() { c.Objects.WatchEndpointSlice(ctx, func() { notify(written) }) })
	watches.Go(func() { triggerAtRate(ctx, written, c.endpoints.Trigger) })
	if c.Policy.Kind == apiservers.Live {
		watches.Go(func() { c.unreported.run(ctx) })
	}
	// In this order, also when the reconciler panics.
	defer watches.Wait()
	defer cancel()
	return reconcile(ctx, report)
}

func notify(notifications chan<- struct{}) {
	select {
	case notifications <- struct{}{}:
	default:
	}
}

func triggerAtRate(ctx context.Context, notifications <-chan struct{}, trigger func()) {
	limiter := rate.NewLimiter(answersPerSecond, answersBurst)
	for {
		select {
		case <-ctx.Done():
			return
		case <-notifications:
		}
		if limiter.Wait(ctx) != nil {
			return // only the end of ctx makes it fail
		}
		trigger()
	}
}
