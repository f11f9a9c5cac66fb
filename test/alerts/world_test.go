package alerts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	"github.com/trivet-dev/trivet/test/internal/promtest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/simulate"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	clusterName = "alerts"
	namespace   = "demo"
	nodeCount   = 12
	// startTimeout is well above the time until all servers work on a loaded machine.
	startTimeout = 4 * time.Minute
	// nodeGrace is a fifth of the default, so that a dead node is noticed as fast as other faults.
	nodeGrace = 10 * time.Second
)

// advertised are the addresses of the kube-apiservers in the endpoints of default/kubernetes.
func advertised() []string { return []string{"10.99.0.1", "10.99.0.2"} }

// world is one control plane with all servers, nodes and Prometheus.
type world struct {
	*testing.T
	dir       string
	cluster   *devcluster.Cluster
	peer      *devcluster.Peer
	kube      kubernetes.Interface // an administrator's
	etcd      *clientv3.Client
	authority *certs.Authority
	ca        string
	replicas  []*replica
	fleet     *simulate.Fleet
	operator  *grpc.ClientConn // to the gateway
	metrics   *promtest.Server

	background sync.WaitGroup
	context    context.Context

	mu     sync.Mutex // guards the following fields
	agents map[string]context.CancelFunc
}

// newWorld starts everything, and returns when all of it works.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), agents: map[string]context.CancelFunc{}}
	w.startControlPlane()
	ctx, end := context.WithCancel(context.Background())
	w.context = ctx
	t.Cleanup(func() {
		end()
		w.background.Wait()
		if t.Failed() {
			for _, r := range w.replicas {
				t.Logf("%s said last:\n%s", r.name, r.lastLines())
			}
		}
	})
	var err error
	if w.authority, err = certs.NewAuthority("trivet", 10*365*24*time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	w.ca = filepath.Join(w.dir, "ca.crt")
	if err := replaceFile(w.ca, w.authority.CertPEM()); err != nil {
		t.Fatal(err)
	}
	w.makeObjects(ctx)
	w.makeReplicas()
	t.Cleanup(func() { // before their proxies, which wait for open watches
		for _, r := range w.replicas {
			r.kill()
		}
	})
	for _, r := range w.replicas {
		if err := r.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range w.fleet.Nodes() {
		w.live(name, "boot-1")
	}
	w.background.Go(func() {
		_ = w.fleet.KeepNodesReady(ctx, time.Second, w.isSilent)
	})
	w.operator = w.dial(w.gateway(), w.client("operator"))
	w.await(startTimeout, w.works)
	w.metrics = promtest.Start(t, promtest.Config{
		Program: *prometheusPath, Rules: *rulesDir, Address: testkit.FreeAddress(t), Files: w.client("trivet:metrics"), Targets: w.targets(),
	})
	w.await(time.Minute, w.metrics.Ready)
	return w
}

func (w *world) startControlPlane() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var err error
	if w.cluster, err = devcluster.Start(ctx, devcluster.Config{AdvertiseAddress: advertised()[0]}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := w.cluster.Stop(); err != nil {
			w.Error(err)
		}
	})
	if w.peer, err = w.cluster.AddAPIServer(ctx, devcluster.PeerConfig{AdvertiseAddress: advertised()[1]}); err != nil {
		w.Fatal(err)
	}
	if w.etcd, err = w.cluster.EtcdClient(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = w.etcd.Close() })
	config := w.cluster.RESTConfig()
	config.WarningHandler, config.QPS = rest.NoWarnings{}, -1
	if w.kube, err = kubernetes.NewForConfig(config); err != nil {
		w.Fatal(err)
	}
}

// makeObjects writes the shipped roles, their users, and a simulated cluster.
func (w *world) makeObjects(ctx context.Context) {
	w.Helper()
	if err := roles.Apply(ctx, w.cluster.RESTConfig(), deploy.Files(), "base", "components/node-health", "components/taint-eviction", "components/endpointslice-mirroring"); err != nil {
		w.Fatal(err)
	}
	for user, role := range map[string]string{"trivet:metrics": "trivet-metrics", "operator": "trivet-operator"} {
		_, err := w.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		}, metav1.CreateOptions{})
		if err != nil {
			w.Fatal(err)
		}
	}
	w.fleet = simulate.New(simulate.Config{Nodes: nodeCount, Services: 10, Pods: 60, Namespace: namespace, Seed: 1}, w.kube, slog.New(slog.DiscardHandler))
	if err := w.fleet.Create(ctx); err != nil {
		w.Fatal(err)
	}
}

func (w *world) makeReplicas() {
	w.Helper()
	for n := range 2 {
		w.newReplica("leasesvc", n, "--loops=*,node-health,taint-eviction", "--shards=8",
			"--heartbeat-interval=1s", "--heartbeat-grace-period=4s", "--lease-duration=10s", "--lease-renew-interval=2s",
			"--node-monitor-grace-period="+nodeGrace.String(), "--node-startup-grace-period="+nodeGrace.String())
		w.newReplica("bootstrapsvc", n, "--auto-repair=off") // repairs are those of the faults
		w.newReplica("slicesvc", n, "--loops=*,endpointslice-mirroring", "--shards=8")
	}
	w.newReplica("gateway", 0, "--http-listen=", "--max-connections=40")
}

// of returns the replicas of a service.
func (w *world) of(service string) []*replica {
	return slices.DeleteFunc(slices.Clone(w.replicas), func(r *replica) bool { return r.service != service })
}

func (w *world) gateway() *replica { return w.of("gateway")[0] }

func (w *world) targets() (all []promtest.Target) {
	for _, r := range w.replicas {
		all = append(all, promtest.Target{Job: r.service, Pod: r.name, Address: r.admin})
	}
	return all
}

// client returns the files of a user.
func (w *world) client(user string, groups ...string) identity.Files {
	w.Helper()
	return w.clientOf(w.authority, user, groups...)
}

func (w *world) clientOf(issuer *certs.Authority, user string, groups ...string) identity.Files {
	w.Helper()
	// A fault's own directory goes with it, and an agent reads its files again for each connection.
	dir, err := os.MkdirTemp(w.dir, "client-")
	if err != nil {
		w.Fatal(err)
	}
	files := identity.Files{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), CAFile: w.ca}
	pair, err := issuer.Issue(certs.ClientLeaf(user, groups...), leafLifetime, time.Now())
	if err == nil {
		err = errors.Join(replaceFile(files.KeyFile, pair.KeyPEM), replaceFile(files.CertFile, pair.CertPEM))
	}
	if err != nil {
		w.Fatal(err)
	}
	return files
}

func (w *world) dial(to *replica, files identity.Files) *grpc.ClientConn {
	w.Helper()
	conn, err := rpcclient.Dial(to.listen, rpcclient.Config{TLS: files}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

// live lets the agent of a node beat.
func (w *world) live(node, boot string) {
	w.Helper()
	var targets []string
	for _, r := range w.of("leasesvc") {
		targets = append(targets, r.listen)
	}
	files := w.client("system:node:"+node, "system:nodes")
	a, err := agent.New(agent.Config{
		Targets: targets, Cluster: clusterName, Name: "alerts",
		Dial: func(target string) (*grpc.ClientConn, error) { // of Targets, or what a replica advertises
			for _, r := range w.of("leasesvc") {
				if r.listen == target {
					target = r.agents.Addr()
				}
			}
			return rpcclient.Dial(target, rpcclient.Config{TLS: files}, slog.New(slog.DiscardHandler))
		},
		Holders: []agent.Holder{{Class: "node", Name: node, BootID: boot}},
	})
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.context)
	ended := make(chan struct{})
	w.background.Go(func() {
		defer close(ended)
		_ = a.Run(ctx)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agents[node] = func() { cancel(); <-ended }
}

// die ends the agent of a node, and its kubelet falls silent.
func (w *world) die(node string) {
	w.mu.Lock()
	end := w.agents[node]
	delete(w.agents, node)
	w.mu.Unlock()
	end()
}

func (w *world) isSilent(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.agents[node] == nil
}

// works returns an error unless every shard has a leader and every replica is ready.
func (w *world) works(ctx context.Context) error {
	for _, r := range w.replicas {
		if r.ended() {
			w.Fatalf("%s has ended:\n%s", r.name, r.lastLines())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	reply, err := gatewayv1.NewClusterServiceClient(w.operator).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
	if err != nil {
		return err
	}
	ready := map[string]int{}
	for _, service := range reply.GetStatus().GetServices() {
		if service.GetLedShardCount() < service.GetShardCount() {
			return fmt.Errorf("%s: %d of %d shards have a leader", service.GetService(), service.GetLedShardCount(), service.GetShardCount())
		}
		for _, replica := range service.GetReplicas() {
			if replica.GetStatus().GetReady() {
				ready[service.GetService()]++
			}
		}
	}
	for _, r := range w.replicas {
		if want := len(w.of(r.service)); ready[r.service] < want {
			return fmt.Errorf("%d replicas of %s are ready, want %d", ready[r.service], r.service, want)
		}
	}
	return nil
}

// leader returns the replica that holds the most terms of a service, and those that hold fewer.
func (w *world) leader(service string) (leads *replica, follows []*replica) {
	w.Helper()
	w.await(time.Minute, func(ctx context.Context) error {
		held, err := w.metrics.Now(ctx, fmt.Sprintf("trivet_terms_held{job=%q}", service))
		if err != nil {
			return err
		}
		best := promtest.Series{}
		for _, s := range held {
			if s.Last > best.Last {
				best = s
			}
		}
		leads, follows = nil, nil
		for _, r := range w.of(service) {
			if r.name == best.Labels["pod"] {
				leads = r
			} else {
				follows = append(follows, r)
			}
		}
		if leads == nil {
			return fmt.Errorf("no replica of %s leads", service)
		}
		return nil
	})
	return leads, follows
}

// await polls a condition until it holds, and fails the test with its last error after a time.
func (w *world) await(within time.Duration, condition func(context.Context) error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			w.Fatalf("not within %v: %v", within, err)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// pause waits for real time to pass, not for a condition.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func loadConfig(t testing.TB, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}
