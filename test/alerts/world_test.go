package alerts

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/test/internal/promtest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/simulate"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

const (
	clusterName = "alerts"
	namespace   = "demo"
	nodeCount   = 12
	// startTimeout is well above the time until all servers work on a loaded machine.
	startTimeout = 4 * time.Minute
	// leafLifetime is far beyond the threshold of TrivetCertificateExpires.
	leafLifetime = certs.LeafLifetime
	// nodeGrace is a fifth of the default, so that a dead node is noticed as fast as other faults.
	nodeGrace = 10 * time.Second
)

// advertised are the addresses of the kube-apiservers in the endpoints of default/kubernetes.
func advertised() []string { return []string{"10.99.0.1", "10.99.0.2"} }

// world is one control plane with all servers, nodes and Prometheus.
type world struct {
	*testing.T
	lab      *worldtest.World
	kube     kubernetes.Interface // an administrator's
	etcd     *clientv3.Client
	fleet    *simulate.Fleet
	operator *grpc.ClientConn // to the gateway
	metrics  *promtest.Server

	background sync.WaitGroup
	context    context.Context

	mu     sync.Mutex // guards the following fields
	agents map[string]context.CancelFunc
}

// newWorld starts everything, and returns when all of it works.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, agents: map[string]context.CancelFunc{}, lab: worldtest.New(t, worldtest.Config{
		Name: clusterName, Own: &devcluster.Config{AdvertiseAddress: advertised()[0]}, Peers: advertised()[1:], Proxies: true,
		Roles: []string{"base", "components/node-health", "components/taint-eviction", "components/endpointslice-mirroring"},
	})}
	w.kube, w.etcd = w.lab.Kube, w.lab.Etcd
	ctx, end := context.WithCancel(context.Background())
	w.context = ctx
	t.Cleanup(func() {
		end()
		w.background.Wait()
	})
	w.makeObjects(ctx)
	w.makeReplicas()
	w.lab.Start()
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

// makeObjects writes the users of the shipped roles, and a simulated cluster.
func (w *world) makeObjects(ctx context.Context) {
	w.Helper()
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
		w.add(worldtest.Leasesvc, n, "--loops=*,node-health,taint-eviction", "--shards=8",
			"--heartbeat-interval=1s", "--heartbeat-grace-period=4s", "--lease-duration=7s", "--lease-renew-interval=2s",
			"--node-monitor-grace-period="+nodeGrace.String(), "--node-startup-grace-period="+nodeGrace.String())
		w.add(worldtest.Bootstrapsvc, n, "--apiserver-advertise-address="+advertised()[n], "--apiserver-port=6443",
			"--auto-repair=off") // repairs are those of the faults
		w.add(worldtest.Slicesvc, n, "--loops=*,endpointslice-mirroring", "--shards=8")
	}
	w.add(worldtest.Gateway, 0, "--http-listen=", "--max-connections=40")
}

// add adds a replica with an audit log of its own.
func (w *world) add(service string, number int, args ...string) {
	w.Helper()
	path := w.auditLog(fmt.Sprintf("%s-%d", service, number))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.Fatal(err)
	}
	w.lab.Add(service, number, append([]string{"--audit-log-file=" + path, fmt.Sprintf("--audit-log-max-bytes=%d", 1<<20), "--audit-log-backups=1"}, args...)...)
}

// auditLog is the path of the audit log of a replica, in a folder of its own.
func (w *world) auditLog(replica string) string {
	return filepath.Join(w.lab.Dir, "audit", replica, "audit.log")
}

// of returns the replicas of a service.
func (w *world) of(service string) []*worldtest.Replica { return w.lab.Of(service) }

func (w *world) gateway() *worldtest.Replica { return w.of(worldtest.Gateway)[0] }

func (w *world) targets() (all []promtest.Target) {
	for _, r := range w.lab.Replicas {
		all = append(all, promtest.Target{Job: r.Service, Pod: r.Name, Address: r.Admin})
	}
	return all
}

// client returns the files of a user.
func (w *world) client(user string, groups ...string) identity.Files {
	w.Helper()
	files, err := w.lab.PKI.Files(user, certs.ClientLeaf(user, groups...))
	if err != nil {
		w.Fatal(err)
	}
	return files
}

// setLifetime gives a replica a new certificate.
func (w *world) setLifetime(r *worldtest.Replica, lifetime time.Duration) {
	w.Helper()
	w.must(w.lab.PKI.SetLifetime(r.Name, lifetime))
}

func (w *world) dial(to *worldtest.Replica, files identity.Files) *grpc.ClientConn {
	w.Helper()
	conn, err := rpcclient.Dial(to.GRPC, rpcclient.Config{TLS: files}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

// live lets the agent of a node beat.
func (w *world) live(node, boot string) {
	w.Helper()
	end := w.lab.Beat(node, boot)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agents[node] = end
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
func (w *world) works(ctx context.Context) error { return w.lab.Working(w.operator)(ctx) }

// leader returns the replica that holds the most terms of a service, and those that hold fewer.
func (w *world) leader(service string) (leads *worldtest.Replica, follows []*worldtest.Replica) {
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
			if r.Name == best.Labels["pod"] {
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
	worldtest.Await(w.T, within, condition)
}
