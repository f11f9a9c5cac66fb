package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// foreignLabel marks objects that no service may change. Its value is the service that could take
// the object for its own.
const foreignLabel = "robustness.trivet.dev/foreign"

// Prefixes of keys in etcd.
const (
	nodesPrefix     = "/registry/minions/"
	leasesPrefix    = "/registry/leases/"
	podsPrefix      = "/registry/pods/" + namespace + "/"
	servicesPrefix  = "/registry/services/specs/"
	slicesPrefix    = "/registry/endpointslices/"
	addressesPrefix = "/registry/ipaddresses/"
	portsKey        = "/registry/ranges/servicenodeports"
	firstPort       = 30000
	lastPort        = 32767
)

// recorder follows all keys of etcd over a connection of its own. Compactions wait for it, so it
// misses none.
type recorder struct {
	*world
	// context ends with the world.
	context  context.Context
	revision int64 // guarded by world.mu, as are the following fields
	// rewound is closed when etcd's revisions have gone back.
	rewound chan struct{}
	// claims has the index of the present claim of each key. processes has the process of each
	// replica id.
	claims    map[string]int
	processes map[string]string
	// kubernetes has the addresses of each slice of default/kubernetes.
	kubernetes map[string][]string
	// ready has the status of the condition Ready of each Node.
	ready   map[string]string
	ports   *big.Int
	mark    string
	foreign map[string]history.ForeignVersion
	// complete is the time of which the record is known to have all changes, and asked that of the
	// question of which etcd's answer will make it complete, or 0.
	complete, asked time.Duration
}

// newRecorder records what etcd has.
func newRecorder(ctx context.Context, w *world) *recorder {
	w.Helper()
	r := &recorder{world: w, context: ctx, processes: map[string]string{}, rewound: make(chan struct{})}
	if err := r.list(); err != nil {
		w.Fatal(err)
	}
	return r
}

// list records what etcd has, as the first versions that the record knows.
func (r *recorder) list() error {
	ctx, cancel := context.WithTimeout(r.context, requestTimeout)
	defer cancel()
	present, err := r.etcd.Get(ctx, "/", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims, r.kubernetes, r.ready = map[string]int{}, map[string][]string{}, map[string]string{}
	r.ports, r.foreign, r.mark = new(big.Int), map[string]history.ForeignVersion{}, ""
	for _, kv := range present.Kvs {
		r.take(&clientv3.Event{Type: mvccpb.PUT, Kv: kv}, 0)
	}
	r.revision = present.Header.Revision
	r.complete, r.asked = r.now(), 0
	return nil
}

// restart begins a new record after etcd's revisions went back. What the test knows by itself
// stays.
func (r *recorder) restart() error {
	r.mu.Lock()
	r.record = history.History{
		Windows: r.record.Windows, Gaps: r.record.Gaps, Downs: r.record.Downs, Lives: r.record.Lives, Servers: r.record.Servers, Marked: r.record.Marked,
	}
	r.sliceActs = nil
	r.mu.Unlock()
	if err := r.list(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.rewound)
	r.rewound = make(chan struct{})
	return nil
}

// follow watches until the world ends.
func (r *recorder) follow() {
	for r.context.Err() == nil {
		r.mu.Lock()
		from, rewound := r.revision+1, r.rewound
		r.mu.Unlock()
		r.followFrom(from, rewound)
		testkit.Pause(r.context, 50*time.Millisecond)
	}
}

// followFrom watches until the watch ends or etcd's revisions went back.
func (r *recorder) followFrom(from int64, rewound <-chan struct{}) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(r.context))
	defer cancel()
	events := r.etcd.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(from))
	r.background.Go(func() { r.askForProgress(ctx) })
	for {
		var answer clientv3.WatchResponse
		select {
		case <-rewound:
			return
		case next, open := <-events:
			if !open {
				return
			}
			answer = next
		}
		// After any other error a new watch misses nothing.
		if err := answer.Err(); errors.Is(err, rpctypes.ErrCompacted) {
			r.note(fmt.Errorf("the watch of etcd: %w", err))
		}
		at := r.now()
		r.mu.Lock()
		for _, event := range answer.Events {
			r.take(event, at)
		}
		if answer.IsProgressNotify() {
			r.proveComplete(at)
		}
		if len(answer.Events) > 0 {
			r.revision = max(r.revision, answer.Events[len(answer.Events)-1].Kv.ModRevision)
		}
		r.mu.Unlock()
	}
}

const (
	// progressPace is the time between two questions whether the record is complete. A connection
	// that ends loses a question, so it is repeated after lostQuestion.
	progressPace = 100 * time.Millisecond
	lostQuestion = time.Second
)

// askForProgress asks etcd, until ctx ends, to answer on the watch when it has sent all changes.
func (r *recorder) askForProgress(ctx context.Context) {
	for again := time.Duration(0); ctx.Err() == nil; testkit.Pause(ctx, progressPace) {
		r.mu.Lock()
		ask := r.asked == 0 || r.now() > again
		if r.asked == 0 {
			r.asked = r.now()
		}
		r.mu.Unlock()
		if ask {
			again = r.now() + lostQuestion
			_ = r.etcd.RequestProgress(ctx) // The question is repeated.
		}
	}
}

// leastGap is the longest time between a question and its answer that is no gap.
const leastGap = 300 * time.Millisecond

// proveComplete takes an answer: the record has all changes up to the question. The caller holds
// mu.
func (r *recorder) proveComplete(at time.Duration) {
	if r.asked == 0 {
		return
	}
	if at-r.complete > leastGap {
		r.record.Gaps = append(r.record.Gaps, history.Gap{From: r.complete, To: at})
	}
	r.complete, r.asked = r.asked, 0
}

func (r *recorder) lastRevision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// take records one event. The caller holds mu.
func (r *recorder) take(event *clientv3.Event, at time.Duration) {
	key, revision, gone := string(event.Kv.Key), event.Kv.ModRevision, event.Type == mvccpb.DELETE
	var err error
	switch {
	case strings.HasPrefix(key, etcdconn.KeyPrefix(clusterName)):
		err = r.takeOwn(strings.TrimPrefix(key, etcdconn.KeyPrefix(clusterName)), event, at)
	case strings.HasPrefix(key, nodesPrefix):
		err = r.takeNode(history.NodeVersion{Revision: revision, At: at, Name: strings.TrimPrefix(key, nodesPrefix), Gone: gone}, event.Kv.Value)
	case strings.HasPrefix(key, leasesPrefix):
		err = r.takeLease(history.Renewal{Revision: revision, At: at, Node: strings.TrimPrefix(key, leasesPrefix), Gone: gone}, event.Kv.Value)
	case strings.HasPrefix(key, podsPrefix):
		err = r.takePod(history.PodVersion{Revision: revision, At: at, Namespace: namespace, Name: strings.TrimPrefix(key, podsPrefix), Gone: gone}, event.Kv.Value)
	case strings.HasPrefix(key, servicesPrefix):
		err = r.takeService(history.ServiceVersion{Revision: revision, At: at, Name: strings.TrimPrefix(key, servicesPrefix), Gone: gone}, event.Kv.Value)
	case strings.HasPrefix(key, slicesPrefix):
		err = r.takeSlice(history.SliceVersion{Revision: revision, At: at, Name: strings.TrimPrefix(key, slicesPrefix), Gone: gone}, event.Kv.Value)
	case strings.HasPrefix(key, addressesPrefix):
		version := history.AllocationVersion{Revision: revision, At: at, Subject: strings.TrimPrefix(key, addressesPrefix), Gone: gone}
		r.record.Allocation = append(r.record.Allocation, version)
		err = r.takeForeign(key, event.Kv.Value, revision, at, gone)
	case key == portsKey && !gone:
		err = r.takePorts(event.Kv.Value, revision, at)
	}
	if err != nil {
		r.problems = append(r.problems, fmt.Errorf("key %s: %w", key, err))
	}
}

// takeOwn records a key of Trivet.
func (r *recorder) takeOwn(key string, event *clientv3.Event, at time.Duration) error {
	parts := strings.Split(key, "/")
	gone := event.Type == mvccpb.DELETE
	switch {
	case len(parts) == 3 && parts[0] == "members" && event.IsCreate():
		var member struct {
			GRPCAddress string `json:"grpcAddress"`
		}
		if err := json.Unmarshal(event.Kv.Value, &member); err != nil {
			return err
		}
		for _, s := range r.slots {
			if s.Calls.Addr() == member.GRPCAddress {
				r.processes[parts[2]] = s.ProcessName()
			}
		}
	case len(parts) == 2 && parts[0] == "ignores" && "findings/"+parts[1] == r.record.Marked:
		return r.takeMark(event, at)
	case len(parts) == 3 && parts[0] == "terms":
		shard, err := strconv.Atoi(parts[2])
		if err != nil {
			return err
		}
		if gone {
			if i, known := r.claims[key]; known {
				r.record.Claims[i].Gone, r.record.Claims[i].To = event.Kv.ModRevision, at
			}
			delete(r.claims, key)
			return nil
		}
		// A change of a key without its deletion is a claim too. The former one then has no end.
		r.claims[key] = len(r.record.Claims)
		r.record.Claims = append(r.record.Claims, history.Claim{
			Service: parts[1], Shard: shard, Holder: r.processes[string(event.Kv.Value)], Epoch: event.Kv.ModRevision, From: at,
		})
	}
	return nil
}

// takeMark records a change of the mark of the finding.
func (r *recorder) takeMark(event *clientv3.Event, at time.Duration) error {
	var mark struct{ Comment string }
	if event.Type != mvccpb.DELETE {
		if err := json.Unmarshal(event.Kv.Value, &mark); err != nil {
			return err
		}
	}
	if mark.Comment != r.mark {
		r.record.Marks = append(r.record.Marks, history.MarkVersion{Revision: event.Kv.ModRevision, At: at, Value: mark.Comment})
	}
	r.mark = mark.Comment
	return nil
}

// holders returns the number of shards of a service that each process holds.
func (r *recorder) holders(service string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := map[string]int{}
	for _, i := range r.claims {
		if c := r.record.Claims[i]; c.Service == service {
			held[c.Holder]++
		}
	}
	return held
}

func (r *recorder) takeNode(version history.NodeVersion, value []byte) error {
	if !version.Gone {
		node, err := decode[*corev1.Node](value)
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				version.Ready = string(c.Status)
			}
		}
	}
	r.ready[version.Name] = version.Ready
	r.record.Nodes = append(r.record.Nodes, version)
	return nil
}

func (r *recorder) takeLease(version history.Renewal, value []byte) error {
	if err := r.takeForeign(leasesPrefix+version.Node, value, version.Revision, version.At, version.Gone); err != nil {
		return err
	}
	within, name, _ := strings.Cut(version.Node, "/")
	if within != nodeLeases || !strings.HasPrefix(name, nodePrefix) {
		return nil
	}
	version.Node = name
	if !version.Gone {
		lease, err := decode[*coordinationv1.Lease](value)
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime != nil {
			version.Renewed = lease.Spec.RenewTime.Time
		}
		if lease.Spec.LeaseDurationSeconds != nil {
			version.Duration = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
		}
	}
	r.record.Renewals = append(r.record.Renewals, version)
	return nil
}

func (r *recorder) takePod(version history.PodVersion, value []byte) error {
	if !version.Gone {
		pod, err := decode[*corev1.Pod](value)
		if err != nil {
			return err
		}
		version.Labels = pod.Labels
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			version.Address = pod.Status.PodIP
		}
		version.Ready = pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	}
	r.record.Pods = append(r.record.Pods, version)
	return nil
}

func (r *recorder) takeService(version history.ServiceVersion, value []byte) error {
	if !version.Gone {
		service, err := decode[*corev1.Service](value)
		if err != nil {
			return err
		}
		version.Selector, version.PublishNotReady = service.Spec.Selector, service.Spec.PublishNotReadyAddresses
		for _, ip := range service.Spec.ClusterIPs {
			if address, err := netip.ParseAddr(ip); err == nil {
				version.Uses = append(version.Uses, address.String())
			}
		}
		for _, port := range service.Spec.Ports {
			if port.NodePort != 0 {
				version.Uses = append(version.Uses, fmt.Sprint(port.NodePort))
			}
		}
	}
	r.record.Services = append(r.record.Services, version)
	return nil
}

func (r *recorder) takeSlice(version history.SliceVersion, value []byte) error {
	if err := r.takeForeign(slicesPrefix+version.Name, value, version.Revision, version.At, version.Gone); err != nil {
		return err
	}
	slice := &discoveryv1.EndpointSlice{}
	if !version.Gone {
		var err error
		if slice, err = decode[*discoveryv1.EndpointSlice](value); err != nil {
			return err
		}
	}
	if strings.HasPrefix(version.Name, "default/") {
		r.takeKubernetes(version, slice)
	}
	if !version.Gone && slice.Labels[discoveryv1.LabelManagedBy] != managedBy {
		return nil
	}
	if service := slice.Labels[discoveryv1.LabelServiceName]; service != "" {
		version.Service = slice.Namespace + "/" + service
	}
	version.Ready = map[string]bool{}
	for _, endpoint := range slice.Endpoints {
		for _, address := range endpoint.Addresses {
			version.Ready[address] = endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
		}
	}
	r.record.Slices = append(r.record.Slices, version)
	return nil
}

// managedBy is the label of the slices that slicesvc writes.
const managedBy = "endpointslice-controller.k8s.io"

// takeKubernetes records the endpoints of default/kubernetes.
func (r *recorder) takeKubernetes(version history.SliceVersion, slice *discoveryv1.EndpointSlice) {
	delete(r.kubernetes, version.Name)
	if slice.Labels[discoveryv1.LabelServiceName] == "kubernetes" {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				r.kubernetes[version.Name] = append(r.kubernetes[version.Name], endpoint.Addresses...)
			}
		}
	}
	r.record.Endpoints = append(r.record.Endpoints, history.EndpointsVersion{
		Revision: version.Revision, At: version.At, Addresses: slices.Concat(slices.Collect(maps.Values(r.kubernetes))...),
	})
}

// takePorts records what changed in the bitmap of node ports.
func (r *recorder) takePorts(value []byte, revision int64, at time.Duration) error {
	object, err := decode[*corev1.RangeAllocation](value)
	if err != nil {
		return err
	}
	after := new(big.Int).SetBytes(object.Data)
	for port := firstPort; port <= lastPort; port++ {
		if bit := after.Bit(port - firstPort); bit != r.ports.Bit(port-firstPort) {
			r.record.Allocation = append(r.record.Allocation, history.AllocationVersion{Revision: revision, At: at, Subject: fmt.Sprint(port), Gone: bit == 0})
		}
	}
	r.ports = after
	return nil
}

// takeForeign records a version of an object with the label of foreign objects, or its end.
func (r *recorder) takeForeign(key string, value []byte, revision int64, at time.Duration, gone bool) error {
	version, known := r.foreign[key]
	if !known {
		if gone {
			return nil
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
		if err != nil {
			return err
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		version = history.ForeignVersion{Object: strings.TrimPrefix(key, "/registry/"), Owner: accessor.GetLabels()[foreignLabel]}
		if version.Owner == "" {
			return nil
		}
		r.foreign[key] = version
	}
	version.Revision, version.At, version.Gone = revision, at, gone
	r.record.Foreign = append(r.record.Foreign, version)
	return nil
}

func decode[T runtime.Object](value []byte) (object T, err error) {
	read, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return object, err
	}
	object, ok := read.(T)
	if !ok {
		return object, fmt.Errorf("value is a %T, want a %T", read, object)
	}
	return object, nil
}
