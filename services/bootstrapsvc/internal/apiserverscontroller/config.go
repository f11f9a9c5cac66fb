package apiserverscontroller

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// Config is what an operator decides. Address may be empty on a replica without a kube-apiserver.
type Config struct {
	// Address is where pods reach the kube-apiserver beside this replica.
	Address hostaddress.Addresses
	// Port is where pods reach every kube-apiserver.
	Port int32
	// Policy, DualStack and ExtraPorts are those of apiservers.Want.
	Policy     apiservers.Policy
	DualStack  bool
	ExtraPorts []apiservers.Port
	// StaticAddress and StaticName are what the policy Static publishes: one of both, or none.
	StaticAddress netip.Addr
	StaticName    string
	// StaticPort is the port of the static address.
	StaticPort int32
	// AdoptMasterLeases also publishes kube-apiservers that are known from master leases only.
	AdoptMasterLeases bool
	// KeepReady keeps the address published when this replica stops and its kube-apiserver is
	// ready.
	KeepReady bool
	// ProbeInterval is the time from one probe to the next, ProbeTimeout the limit of one probe.
	ProbeInterval, ProbeTimeout time.Duration
	Thresholds                  apiservers.ReadinessThresholds
}

// Keys are the keys of sidecars in etcd. [Registry] implements it. Calls block until ctx ends and
// may be concurrent.
type Keys interface {
	Read(ctx context.Context) ([]Entry, error)
	List(ctx context.Context) ([]Entry, error)
	Publish(ctx context.Context, entry Entry, session clientv3.LeaseID) error
	DeleteStale(ctx context.Context, address netip.Addr) (bool, error)
	MarkLeft(ctx context.Context, entry Entry) error
	// Key is the etcd key of an entry.
	Key(entry Entry) string
	// Watch blocks until ctx ends. changed must not block.
	Watch(ctx context.Context, changed func())
}

// Probe probes one kube-apiserver; [Prober.Probe] is one. It blocks until the answer or the end of
// ctx.
type Probe func(ctx context.Context) apiservers.ProbeResult

// Objects are the Kubernetes objects of the endpoints. *baselinecontroller.KubeObjects implements
// it. Reads are live and return nil for an object that does not exist. Calls block until ctx ends
// and may be concurrent.
type Objects interface {
	baselinecontroller.Writer
	Endpoints(ctx context.Context) (*corev1.Endpoints, error)
	EndpointSlices(ctx context.Context) ([]*discoveryv1.EndpointSlice, error)
	// WatchEndpointSlice blocks until ctx ends. It calls changed, which must not block, after each
	// write of the EndpointSlice that is named after the Service.
	WatchEndpointSlice(ctx context.Context, changed func())
}

// Deps are the dependencies of a Controller. All are required, except that Metrics may be nil. All
// functions but Session and those about leadership block until ctx ends at most.
type Deps struct {
	ReplicaID string
	Keys      Keys
	// Session returns the etcd session to which the key of this replica is bound, a context that
	// ends with it, and whether there is one now. It does not block.
	Session func() (clientv3.LeaseID, context.Context, bool)
	// Probe probes the kube-apiserver beside this replica, ProbeOf makes a probe of an adopted one.
	Probe   Probe
	ProbeOf func(netip.Addr) Probe
	// MasterLeases reads the keys of kube-apiserver's own reconciler.
	MasterLeases func(ctx context.Context) ([]apiservers.MasterLease, error)
	LookupIP     func(ctx context.Context, network, host string) ([]netip.Addr, error)
	Objects      Objects
	// ObserveService observes default/kubernetes, whose ClusterIP gives the address family.
	ObserveService func(ctx context.Context) (baselinecontroller.ServiceObservation, error)
	// YieldLeadership and PreferOthers are those of term.Candidate.
	YieldLeadership func(reason error)
	PreferOthers    func(reason error)
	Logger          *slog.Logger
	// Tracer starts the spans of the passes. The zero Tracer starts none.
	Tracer            tracing.Tracer
	Metrics           prometheus.Registerer
	ReconcilerMetrics *baselinecontroller.Metrics
	// Applied is that of baselinecontroller.ReconcilerConfig; it may be nil.
	Applied func(baseline.Change)
	// DryRun is that of baselinecontroller.ReconcilerConfig, for the endpoints.
	DryRun func(baselinecontroller.Observation, error)
}

type metrics struct {
	servers *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	register := promauto.With(registerer)
	return &metrics{
		servers: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_apiservers",
			Help: "Known kube-apiservers on the leader, by state (ready, not_ready, unreadable).",
		}, []string{"state"}),
	}
}
