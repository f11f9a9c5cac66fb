package baselinecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// Names of the loops, as --loops takes them.
const (
	NamespacesLoop = "system-namespaces"
	ServiceLoop    = "kubernetes-service"
)

// Periods as in kube-apiserver.
const (
	namespacesPeriod = time.Minute
	servicePeriod    = 10 * time.Second
)

// cidrTimeout leaves time for the rest of a pass when the ServiceCIDR cannot be read.
const cidrTimeout = 3 * time.Second

// Objects are the Kubernetes objects of this package's loops. [KubeObjects] implements it. Reads
// are live and return nil for an object that does not exist. Calls block until ctx ends and may be
// concurrent.
type Objects interface {
	Writer
	Namespaces(ctx context.Context, names []string) ([]*corev1.Namespace, error)
	Service(ctx context.Context) (*corev1.Service, error)
	ServiceCIDR(ctx context.Context) (baseline.ServiceCIDR, error)
}

// Config says what the Service must be.
type Config struct {
	// ServiceRanges are the configured service ranges, the primary one first. If it is empty, the
	// ranges are read from the default ServiceCIDR.
	ServiceRanges []netip.Prefix
	// Service is the wanted Service without ClusterIP and Families, which the ranges determine.
	Service baseline.Service
}

// Deps are the dependencies of a Controller. All but Applied are required.
type Deps struct {
	Objects Objects
	Logger  *slog.Logger
	// Tracer starts the spans of the passes. The zero Tracer starts none.
	Tracer  tracing.Tracer
	Metrics *Metrics
	// Applied is that of ReconcilerConfig.
	Applied func(baseline.Change)
	// DryRun returns that of ReconcilerConfig for a loop. It may be nil.
	DryRun func(loop string) func(Observation, error)
}

// Controller reconciles the system namespaces and the Service default/kubernetes. Its methods are
// safe for concurrent use.
type Controller struct {
	cfg                 Config
	objects             Objects
	namespaces, service *Reconciler
}

// New returns a controller and starts nothing.
func New(cfg Config, deps Deps) *Controller {
	c := &Controller{cfg: cfg, objects: deps.Objects}
	dryRun := func(name string) func(Observation, error) {
		if deps.DryRun == nil {
			return nil
		}
		return deps.DryRun(name)
	}
	c.namespaces = NewReconciler(ReconcilerConfig{
		Loop: NamespacesLoop, DryRun: dryRun(NamespacesLoop), Period: namespacesPeriod, Writer: deps.Objects, Applied: deps.Applied, Logger: deps.Logger, Metrics: deps.Metrics, Tracer: deps.Tracer,
		Reasons: []baseline.Reason{baseline.NamespaceTerminating, baseline.NamespaceMislabelled},
		Observe: func(ctx context.Context) (Observation, error) {
			found, err := c.ObserveNamespaces(ctx)
			return Observation{
				Changes: found.Changes, Counts: map[string]int64{"namespaces": int64(len(found.Existing))}, Incomplete: err,
			}, nil
		},
	})
	c.service = NewReconciler(ReconcilerConfig{
		Loop: ServiceLoop, DryRun: dryRun(ServiceLoop), Period: servicePeriod, Writer: deps.Objects, Applied: deps.Applied, Logger: deps.Logger, Metrics: deps.Metrics, Tracer: deps.Tracer,
		Reasons: []baseline.Reason{
			baseline.ServiceTerminating, baseline.NodePortsHeld, baseline.ClusterIPDiffers, baseline.ClusterIPUnknown, baseline.SingleFamily,
			baseline.CIDRMissing, baseline.CIDRTerminating, baseline.CIDRNotReady, baseline.CIDRDiffers, baseline.CIDRUnreadable,
		},
		Observe: func(ctx context.Context) (Observation, error) {
			found, err := c.ObserveService(ctx)
			return Observation{Changes: found.Changes}, err
		},
	})
	return c
}

// Reconcilers are the loops' reconcilers, in the order in which a cluster needs them.
func (c *Controller) Reconcilers() []*Reconciler { return []*Reconciler{c.namespaces, c.service} }

// Loops run on the leader.
func (c *Controller) Loops() []loop.Loop {
	return []loop.Loop{{
		Name: NamespacesLoop, Scope: loop.Leader, Stall: 5 * namespacesPeriod, Run: c.namespaces.Run, Shadow: c.namespaces.Compare, ShadowScope: loop.Leader,
		Doc: "Creates missing system namespaces.",
	}, {
		Name: ServiceLoop, Scope: loop.Leader, Stall: time.Minute, Run: c.service.Run, Shadow: c.service.Compare, ShadowScope: loop.Leader,
		Doc: "Repairs the service default/kubernetes.",
	}}
}

// NamespacesObservation is what ObserveNamespaces found.
type NamespacesObservation struct {
	Existing []*corev1.Namespace
	Changes  []baseline.Change
}

// ObserveNamespaces reads the system namespaces and plans their changes. A namespace that cannot be
// read has no plan and does not stop the remaining ones; the error is about it.
func (c *Controller) ObserveNamespaces(ctx context.Context) (NamespacesObservation, error) {
	var found NamespacesObservation
	var problems []error
	unread := map[string]bool{}
	for _, name := range baseline.SystemNamespaces() {
		existing, err := c.objects.Namespaces(ctx, []string{name})
		if err != nil {
			problems, unread[name] = append(problems, err), true
			continue
		}
		found.Existing = append(found.Existing, existing...)
	}
	found.Changes = slices.DeleteFunc(baseline.PlanNamespaces(found.Existing), func(change baseline.Change) bool {
		return unread[change.Object.GetName()]
	})
	return found, errors.Join(problems...)
}

// ServiceObservation is what ObserveService found.
type ServiceObservation struct {
	// Existing is nil if the Service does not exist.
	Existing *corev1.Service
	CIDR     baseline.ServiceCIDR
	// ClusterIP is that of the Service or, if it has none, the one that it will get. It is the zero
	// Addr if neither is known.
	ClusterIP netip.Addr
	Changes   []baseline.Change
}

// ObserveService reads the Service and the default ServiceCIDR and plans the changes of the
// Service.
func (c *Controller) ObserveService(ctx context.Context) (ServiceObservation, error) {
	existing, err := c.objects.Service(ctx)
	if err != nil {
		return ServiceObservation{}, err
	}
	cidr := c.readServiceCIDR(ctx)
	want, err := c.wanted(cidr)
	if err != nil {
		return ServiceObservation{}, err
	}
	return ServiceObservation{
		Existing:  existing,
		CIDR:      cidr,
		ClusterIP: clusterIPOf(existing, want.ClusterIP),
		Changes:   append(baseline.PlanService(want, existing), baseline.ReportServiceCIDR(c.cfg.ServiceRanges, cidr)...),
	}, nil
}

// readServiceCIDR reads the default ServiceCIDR. Neither the Service nor the endpoints wait for it:
// a failure is part of the result.
func (c *Controller) readServiceCIDR(ctx context.Context) baseline.ServiceCIDR {
	ctx, cancel := context.WithTimeout(ctx, cidrTimeout)
	defer cancel()
	cidr, err := c.objects.ServiceCIDR(ctx)
	if err != nil {
		return baseline.ServiceCIDR{Unread: err.Error()}
	}
	return cidr
}

// wanted returns what the Service must be. A default ServiceCIDR that is being replaced says
// nothing about the ranges that follow it.
func (c *Controller) wanted(cidr baseline.ServiceCIDR) (baseline.Service, error) {
	want := c.cfg.Service
	var ranges []netip.Prefix
	if cidr.Ready() {
		ranges = cidr.Ranges()
		want.Families = baseline.FamiliesOf(ranges)
	}
	if len(c.cfg.ServiceRanges) > 0 {
		ranges = c.cfg.ServiceRanges
	}
	if len(ranges) == 0 {
		return want, nil
	}
	var err error
	want.ClusterIP, err = baseline.FirstAddress(ranges[0])
	return want, err
}

func clusterIPOf(existing *corev1.Service, fallback netip.Addr) netip.Addr {
	if existing == nil {
		return fallback
	}
	if address, err := netip.ParseAddr(existing.Spec.ClusterIP); err == nil {
		return address.Unmap()
	}
	return fallback
}

// Forget drops what only a leader knows. Call it when a term has ended.
func (c *Controller) Forget() {
	for _, reconciler := range c.Reconcilers() {
		reconciler.Forget()
	}
}

// Together calls functions at the same time and returns when all have returned. A panic of one is a
// panic of the caller then, so that it costs a pass and not the process.
func Together(functions ...func()) {
	var running sync.WaitGroup
	panics := make(chan string, len(functions))
	for _, function := range functions {
		running.Go(func() {
			defer func() {
				if value := recover(); value != nil {
					panics <- fmt.Sprintf("%v\n%s", value, debug.Stack())
				}
			}()
			function()
		})
	}
	running.Wait()
	select {
	case first := <-panics:
		panic(first)
	default:
	}
}
