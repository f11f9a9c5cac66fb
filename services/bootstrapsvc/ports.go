package bootstrapsvc

import (
	"context"
	"net/netip"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// Leadership decides which replica leads. *term.Candidate is one.
type Leadership interface {
	// Run blocks until ctx ends and calls body for each term held here; see term.Candidate.
	Run(ctx context.Context, body term.Body) error
	// Status answers from memory.
	Status() term.Status
	// Concede gives the term to a replica that is ready, for as long as there is a reason. It does not block.
	Concede(reason error)
}

// Sessions gives the etcd session to which this replica's keys are bound. *term.Candidate is one.
type Sessions interface {
	// Session answers from memory: the lease, a context that ends with it, and whether there is one now.
	Session() (clientv3.LeaseID, context.Context, bool)
}

// Etcd is what is needed of etcd. *clientv3.Client has it.
type Etcd = apiserverscontroller.Etcd

// objects are the Kubernetes objects of the baseline; see package cluster. Reads are live and answer nil for what does not
// exist; calls block until ctx ends and may be concurrent.
type objects interface {
	Namespaces(ctx context.Context, names []string) ([]*corev1.Namespace, error)
	Service(ctx context.Context) (*corev1.Service, error)
	Endpoints(ctx context.Context) (*corev1.Endpoints, error)
	EndpointSlices(ctx context.Context) ([]*discoveryv1.EndpointSlice, error)
	ServiceCIDR(ctx context.Context) (baseline.ServiceCIDR, error)
	// Apply writes one change under its guard; its error wraps cluster.ErrConflict if somebody else was faster.
	Apply(ctx context.Context, step baseline.Change) error
	// Watch blocks until ctx ends; changed is called when somebody has written the EndpointSlice, and must not block.
	Watch(ctx context.Context, changed func())
}

// keys are the apiserver keys in etcd; see package registry. Calls block until ctx ends and may be concurrent.
type keys interface {
	Read(ctx context.Context) ([]apiserverscontroller.Entry, error)
	List(ctx context.Context) ([]apiserverscontroller.Entry, error)
	Publish(ctx context.Context, entry apiserverscontroller.Entry, session clientv3.LeaseID) error
	Evict(ctx context.Context, address netip.Addr) (bool, error)
	Withdraw(ctx context.Context, address netip.Addr) error
	Leave(ctx context.Context, entry apiserverscontroller.Entry) error
	// Key is the etcd key of an entry.
	Key(entry apiserverscontroller.Entry) string
	// Watch blocks until ctx ends; changed must not block.
	Watch(ctx context.Context, changed func())
}

// prober asks the kube-apiserver beside this replica whether it is ready. It blocks until the answer or ctx's end.
type prober interface {
	Probe(ctx context.Context) apiservers.Outcome
}

// leases are kube-apiserver's own keys; see package masterlease. Calls block until ctx ends and may be concurrent.
type leases interface {
	Read(ctx context.Context) ([]apiserverscontroller.MasterLease, error)
}

// resolver looks names up; *net.Resolver is one. It blocks until the answer or ctx's end.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}
