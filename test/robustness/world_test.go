package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

const (
	clusterName = "robustness"
	namespace   = "demo"
	nodeLeases  = "kube-node-lease"
	etcdMembers = 3
	// shardCount is the number of shards of leasesvc and slicesvc, which have 64 by default.
	shardCount = 8
	// startTimeout is well above the time until all services work on a loaded machine.
	startTimeout = 3 * time.Minute
	// requestTimeout bounds the test's own requests.
	requestTimeout = 10 * time.Second
)

// The times of leasesvc, a fifth of the defaults for nodes, so that a step takes half a minute.
const (
	beatInterval  = time.Second
	beatGrace     = 5 * time.Second
	nodeGrace     = 10 * time.Second
	leaseDuration = 9 * time.Second
	kubeletPace   = 2 * time.Second
)

// advertised are the addresses of the kube-apiservers in the endpoints of default/kubernetes.
func advertised() []string { return []string{"10.99.0.1", "10.99.0.2"} }

// world is one control plane with all services, their traffic and the record of the run.
type world struct {
	*testing.T
	lab     *worldtest.World
	dir     string
	binary  string
	began   time.Time
	seed    uint64
	calm    time.Duration
	profile traffic
	cluster *devcluster.Cluster
	peer    *devcluster.Peer
	// direct and etcd reach the control plane without a proxy.
	direct   kubernetes.Interface
	etcd     *clientv3.Client
	pki      *worldtest.PKI
	slots    []*slot
	shards   map[string]int
	nodes    *simulatedNodes
	gateway  *grpc.ClientConn
	recorder *recorder

	// missed counts the changes of the traffic that failed.
	missed atomic.Int64
	// present is the step that is injected. updates is the number of begins and ends of roll-outs
	// so far.
	present atomic.Pointer[schedule.Step]
	updates atomic.Int64

	background sync.WaitGroup
	end        context.CancelFunc

	mu        sync.Mutex // guards the following fields
	record    history.History
	sliceActs []sliceAct
	problems  []error
}

// newWorld starts a control plane, all services and their traffic, and returns when all of them
// work. The test's cleanup ends them.
func newWorld(t *testing.T, p plan) *world {
	t.Helper()
	w := &world{
		T: t, seed: p.seed, calm: p.calm, profile: p.profile, began: time.Now(),
		shards: map[string]int{history.Leasesvc: shardCount, history.Bootstrapsvc: 1, history.Slicesvc: shardCount},
	}
	w.binary = services(t)
	w.startControlPlane(workDir(t))
	ctx, end := context.WithCancel(context.Background())
	w.end = end
	t.Cleanup(func() {
		end()
		w.background.Wait()
	})
	w.makeSlots()
	w.recorder = newRecorder(ctx, w)
	w.background.Go(func() { w.recorder.follow() })
	w.background.Go(func() { w.watchForStalls(ctx) })
	w.makeObjects(ctx)
	w.startServices()
	w.nodes = newSimulatedNodes(w)
	w.nodes.start(ctx)
	w.background.Go(func() { w.ask(ctx) })
	w.background.Go(func() { w.read(ctx) })
	w.background.Go(func() { w.mark(ctx) })
	w.background.Go(func() { w.callAll(ctx) })
	w.background.Go(func() { w.churn(ctx) })
	w.await(startTimeout, w.works)
	return w
}

// workDir returns nothing or, with -robustness.keep, a directory that remains.
func workDir(t *testing.T) string {
	t.Helper()
	if *keep == "" {
		return ""
	}
	dir := filepath.Join(*keep, filepath.Base(t.Name()))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (w *world) startControlPlane(dir string) {
	w.Helper()
	w.lab = worldtest.New(w.T, worldtest.Config{
		Name: clusterName, Dir: dir, Own: &devcluster.Config{AdvertiseAddress: advertised()[0], EtcdMembers: etcdMembers}, Peers: advertised()[1:], Proxies: true,
	})
	w.dir, w.cluster, w.peer, w.etcd, w.pki = w.lab.Dir, w.lab.Cluster, w.lab.Peers[0], w.lab.Etcd, w.lab.PKI
	config := w.cluster.RESTConfig()
	config.WarningHandler, config.Timeout = rest.NoWarnings{}, requestTimeout/2
	var err error
	if w.direct, err = kubernetes.NewForConfig(config); err != nil {
		w.Fatal(err)
	}
	for _, address := range advertised() {
		w.record.Servers = append(w.record.Servers, history.Server{Address: address, Running: true})
	}
}

func (w *world) makeSlots() {
	w.Helper()
	for n := range *replicas {
		w.newSlot(history.Leasesvc, n, "--loops=*,node-health", fmt.Sprintf("--shards=%d", shardCount),
			"--heartbeat-interval="+beatInterval.String(), "--heartbeat-grace-period="+beatGrace.String(),
			"--lease-duration="+leaseDuration.String(), "--lease-renew-interval="+(leaseDuration/4).String(),
			"--node-monitor-grace-period="+nodeGrace.String(), "--node-startup-grace-period="+nodeGrace.String())
		sidecar := []string{"--apiserver-advertise-address=" + advertised()[n%2], "--apiserver-port=6443"}
		if n > 1 {
			sidecar = append(sidecar, "--loops=*,-apiserver-probe") // Each kube-apiserver has one.
		}
		w.newSlot(history.Bootstrapsvc, n, sidecar...)
		w.newSlot(history.Slicesvc, n, fmt.Sprintf("--shards=%d", shardCount))
	}
	w.newSlot(history.Gateway, 0, "--http-listen=")
}

func (w *world) startServices() {
	w.Helper()
	w.lab.Start()
	var err error
	if w.gateway, err = w.dialAsAdministrator(w.slots[len(w.slots)-1].GRPC, history.Gateway); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = w.gateway.Close() })
}

// works returns an error unless every shard has a leader and every replica is ready.
func (w *world) works(ctx context.Context) error {
	want := map[string]int{history.Gateway: 1}
	for service := range w.shards {
		want[service] = *replicas
	}
	if _, err := worldtest.Working(ctx, w.gateway, want); err != nil {
		return err
	}
	return errors.Join(w.nodes.registered(), w.findingIsKnown(ctx))
}

// await polls a condition until it holds, and fails the test with its last error after a time.
func (w *world) await(within time.Duration, condition func(context.Context) error) {
	w.Helper()
	worldtest.Await(w.T, within, condition)
}

// now is the time since the begin of the run.
func (w *world) now() time.Duration { return time.Since(w.began) }

// note records a problem of the test itself, which makes the run worthless.
func (w *world) note(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) < 20 {
		w.problems = append(w.problems, err)
	}
}

// miss counts a change of the traffic that failed, as while the control plane is disturbed. The
// floor judges whether enough is left.
func (w *world) miss(err error) {
	if err != nil {
		w.missed.Add(1)
	}
}
