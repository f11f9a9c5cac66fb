package nodestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/internal/kubewatch"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

var (
	// ErrNodeMissing says that no Node of that name exists.
	ErrNodeMissing = errors.New("node does not exist")
	// ErrNodesNotListed says that the Nodes have not been listed yet.
	ErrNodesNotListed = errors.New("nodes have not been listed yet")
)

// Config is the configuration of a Store.
type Config struct {
	// Namespace is where the Leases of Nodes are.
	Namespace string
	// Labels of Nodes are cached beside those that package nodehealth needs.
	Labels []string
	// NodeHealth and Eviction say which controllers of this process subscribe. Fields that only the
	// other one needs are not cached. Without both, a Node keeps its name and UID.
	NodeHealth, Eviction bool
	// RenewedByUs returns whether leasesvc renewed a Lease last. It is required for Leases.
	RenewedByUs func(*coordinationv1.Lease) bool
	// WatchSilenceLimit is how long nothing may come from a watch before it is reopened; 0 means 90
	// s.
	WatchSilenceLimit time.Duration
	// Metrics gets trivet_watch_reopens_total; nil leaves it unregistered.
	Metrics prometheus.Registerer
	// Logger may be nil.
	Logger *slog.Logger
}

// Kinds is a set of kinds of objects.
type Kinds uint8

// Kinds that can be cached. A Pod that is not bound to a Node is not cached.
const (
	Nodes Kinds = 1 << iota
	Leases
	Pods
)

// Store is a cache of Nodes, Leases and Pods. Its methods are safe for concurrent use. Objects that
// it returns are shared and must not be written to, except Pods, which each call makes anew.
type Store struct {
	cfg     Config
	kube    kubernetes.Interface
	slimmer *slimmer
	uids    *Subscription
	watches *kubewatch.Metrics

	mu      sync.Mutex // guards what follows
	running map[Kinds]*informer
}

// New returns a Store that watches nothing yet.
func New(kube kubernetes.Interface, cfg Config) *Store {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{cfg: cfg, kube: kube, slimmer: newSlimmer(cfg), running: map[Kinds]*informer{}, watches: kubewatch.NewMetrics(cfg.Metrics)}
	s.uids = s.Subscribe(Nodes, 0)
	return s
}

// Run watches Nodes for UID and Check until ctx ends. It is called once.
func (s *Store) Run(ctx context.Context) error { return s.uids.Run(ctx) }

// Check returns nil once the Nodes have been listed.
func (s *Store) Check() error {
	if s.uids.informer(Nodes) == nil {
		return ErrNodesNotListed
	}
	return nil
}

// UID returns the UID of a Node from the cache. It wraps ErrNodeMissing or ErrNodesNotListed.
func (s *Store) UID(name string) (types.UID, error) {
	if err := s.Check(); err != nil {
		return "", fmt.Errorf("node %q: %w", name, err)
	}
	if node := s.uids.Node(name); node != nil {
		return node.UID, nil
	}
	return "", fmt.Errorf("node %q: %w", name, ErrNodeMissing)
}

// Confirm asks kube-apiserver for the UID of a Node, for decisions that a cache which is behind
// would get wrong. It wraps ErrNodeMissing.
func (s *Store) Confirm(ctx context.Context, name string) (types.UID, error) {
	node, err := s.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("node %q: %w", name, ErrNodeMissing)
	}
	if err != nil {
		return "", fmt.Errorf("get node %q: %w", name, err)
	}
	return node.UID, nil
}

// Pods returns the Pods on a Node, in no order, or none if no Subscription has Pods.
func (s *Store) Pods(node string) []*corev1.Pod { return podsOf(s.runningInformer(Pods), node) }

// Lease returns what the Lease of a Node says. It returns the zero Lease if there is none, or no
// Subscription with Leases.
func (s *Store) Lease(node string) nodehealth.Lease {
	return leaseOf(s.runningInformer(Leases), s.cfg.Namespace, node)
}

func (s *Store) runningInformer(kind Kinds) *informer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[kind]
}

// relist stops all informers. Subscriptions list everything again, and use the old cache until
// then.
func (s *Store) relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.running {
		i.stop()
	}
	clear(s.running)
}

// informer is one watch, which Subscriptions share.
type informer struct {
	cache.SharedIndexInformer
	heard *heardTime

	users int // guarded by Store.mu
	// stop ends the watch; stopped is closed when it has ended.
	stop    context.CancelFunc
	stopped chan struct{}
}

// acquire returns the running informers of kinds, and starts those that are missing. It needs one
// release.
func (s *Store) acquire(kinds Kinds) (map[Kinds]*informer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	acquired := map[Kinds]*informer{}
	for _, kind := range []Kinds{Nodes, Leases, Pods} {
		if kinds&kind == 0 {
			continue
		}
		if s.running[kind] == nil {
			i, err := s.start(kind)
			if err != nil {
				return acquired, fmt.Errorf("start informer: %w", err)
			}
			s.running[kind] = i
		}
		s.running[kind].users++
		acquired[kind] = s.running[kind]
	}
	return acquired, nil
}

func (s *Store) start(kind Kinds) (*informer, error) {
	heard := &heardTime{}
	i := &informer{SharedIndexInformer: s.newInformer(kind, heard), heard: heard, stopped: make(chan struct{})}
	if err := i.SetTransform(s.slimmer.slim); err != nil {
		return nil, err
	}
	err := i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, cause error) {
		s.cfg.Logger.Debug("watch interrupted", "error", cause)
	})
	if err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, i.stop = context.WithCancel(context.Background()) // it may outlive the Subscription that started it
	go func() {
		defer close(i.stopped)
		i.RunWithContext(ctx)
	}()
	return i, nil
}

func (s *Store) newInformer(kind Kinds, heard *heardTime) cache.SharedIndexInformer {
	switch kind {
	case Nodes:
		return newInformer(s, s.kube.CoreV1().Nodes(), "Node", heard, &corev1.Node{}, nil, cache.Indexers{})
	case Leases:
		return newInformer(s, s.kube.CoordinationV1().Leases(s.cfg.Namespace), "Lease", heard, &coordinationv1.Lease{}, nil, cache.Indexers{})
	}
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "")
	return newInformer(s, s.kube.CoreV1().Pods(metav1.NamespaceAll), "Pod", heard, &corev1.Pod{}, bound, cache.Indexers{byNode: nodeOfPod})
}

// release ends the informers that have no other user, and waits until they have ended.
func (s *Store) release(acquired map[Kinds]*informer) {
	var unused []*informer
	s.mu.Lock()
	for kind, i := range acquired {
		i.users--
		if i.users > 0 {
			continue
		}
		if s.running[kind] == i {
			delete(s.running, kind)
		}
		unused = append(unused, i)
	}
	s.mu.Unlock()
	for _, i := range unused {
		i.stop()
		<-i.stopped
	}
}

// byNode is the index of Pods by the name of their Node.
const byNode = "node"

func nodeOfPod(object any) ([]string, error) {
	if pod, ok := object.(*cachedPod); ok {
		return []string{pod.node}, nil
	}
	return nil, nil
}

func nodeOf(i *informer, name string) *corev1.Node {
	node, _ := lookup(i, name).(*corev1.Node)
	return node
}

func leaseOf(i *informer, namespace, name string) nodehealth.Lease {
	if cached, ok := lookup(i, namespace+"/"+name).(*cachedLease); ok {
		return cached.lease
	}
	return nodehealth.Lease{}
}

func lookup(i *informer, key string) any {
	if i == nil {
		return nil
	}
	object, _, err := i.GetStore().GetByKey(key)
	if err != nil {
		return nil // the key function cannot fail for a key
	}
	return object
}

func podsOf(i *informer, node string) []*corev1.Pod {
	if i == nil {
		return nil
	}
	objects, err := i.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil // the index exists
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if cached, ok := object.(*cachedPod); ok {
			pods = append(pods, cached.pod())
		}
	}
	return pods
}
