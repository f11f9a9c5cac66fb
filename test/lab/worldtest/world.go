// Package worldtest builds what a system test runs against: a control plane, the replicas of
// Trivet's servers with their certificates and rights, a proxy on each of their links, and agents.
//
// A test binary whose replicas are processes calls Main in its TestMain.
package worldtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/roles"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/server"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// startTimeout bounds the start of a control plane on a busy machine.
	startTimeout = 3 * time.Minute
	// statusTimeout bounds a question for the status.
	statusTimeout = 15 * time.Second
	// stopTimeout is the stop timeout of a replica and a margin for a busy machine.
	stopTimeout = 40 * time.Second
)

// Config describes a world. The zero value is one without replicas, on the control plane that all
// tests of the binary share.
type Config struct {
	// Name is the --cluster of the replicas.
	Name string
	// Dir has the files of the world. The default is a temporary directory. If a test fails whose
	// directory does not remain, the ends of the logs are printed.
	Dir string
	// Replicas and Agents are the numbers of the function Start.
	Replicas, Agents int
	// On is a control plane that runs already.
	On *devcluster.Cluster
	// Own configures a control plane for this world alone. Peers are the advertised addresses of
	// its further kube-apiservers, which the replicas take in turn.
	Own   *devcluster.Config
	Peers []string
	// Roles are folders of deploy/ whose roles exist. The replicas have the rights of these roles;
	// without them, those of an administrator.
	Roles []string
	// Plain leaves out TLS between the servers and their callers.
	Plain bool
	// Clients are further authorities whose client certificates count.
	Clients []*certs.Authority
	// Proxies puts a proxy on each link of the replicas.
	Proxies bool
}

// World is a control plane with replicas. Its fields may be read after New.
type World struct {
	Config
	Cluster *devcluster.Cluster
	Peers   []*devcluster.Peer
	// Kube and Etcd are an administrator's clients, without a proxy.
	Kube     kubernetes.Interface
	Etcd     *clientv3.Client
	PKI      *PKI // nil for a plain world
	Replicas []*Replica
	// Operator is a connection to the gateway, after the function Start.
	Operator *grpc.ClientConn

	t testing.TB
}

// Replica is one replica in a process of its own, and the proxies on its links, if there are any.
type Replica struct {
	*server.Server
	// ToEtcd has one proxy for each member of etcd, and ToKube one for requests.
	ToEtcd Relays
	ToKube *faultproxy.KubeProxy
	// KubeLink has the bytes between the replica and ToKube.
	KubeLink *faultproxy.Relay
	// Calls leads to the replica's GRPC.
	Calls *faultproxy.Relay
}

// New starts a control plane without replicas. The cleanup of the test ends everything.
func New(t testing.TB, cfg Config) *World {
	t.Helper()
	w := &World{Config: cfg, t: t}
	if w.Dir == "" {
		w.Dir = t.TempDir()
	}
	switch {
	case cfg.On != nil:
		w.Cluster = cfg.On
	case cfg.Own != nil:
		w.startControlPlane(*cfg.Own)
	default:
		w.Cluster = testkit.Cluster(t)
	}
	var err error
	if w.Etcd, err = w.Cluster.EtcdClient(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Etcd.Close() })
	if w.Cluster.Kubeconfig() != "" {
		w.connectKube()
	}
	if !cfg.Plain {
		if w.PKI, err = NewPKI(filepath.Join(w.Dir, "certificates"), "trivet", cfg.Clients...); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, r := range w.Replicas {
			if t.Failed() && cfg.Dir == "" {
				t.Logf("%s said last:\n%s", r.Name, r.LogEnd())
			}
		}
	})
	return w
}

func (w *World) startControlPlane(cfg devcluster.Config) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var err error
	if w.Cluster, err = devcluster.Start(ctx, cfg); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := w.Cluster.Stop(); err != nil {
			w.t.Error(err)
		}
	})
	for _, address := range w.Config.Peers {
		peer, err := w.Cluster.AddAPIServer(ctx, devcluster.PeerConfig{AdvertiseAddress: address})
		if err != nil {
			w.t.Fatal(err)
		}
		w.Peers = append(w.Peers, peer)
	}
}

func (w *World) connectKube() {
	w.t.Helper()
	config := w.Cluster.RESTConfig()
	config.WarningHandler, config.QPS = rest.NoWarnings{}, -1
	var err error
	if w.Kube, err = kubernetes.NewForConfig(config); err != nil {
		w.t.Fatal(err)
	}
	if len(w.Roles) > 0 {
		if err := roles.Apply(context.Background(), config, deploy.Files(), w.Roles...); err != nil {
			w.t.Fatal(err)
		}
	}
}

// kubeconfig returns the path of a kubeconfig of a replica, for the kube-apiserver beside it.
func (w *World) kubeconfig(service string, number int) string {
	w.t.Helper()
	write := w.Cluster.WriteKubeconfig
	if beside := number % (len(w.Peers) + 1); beside > 0 {
		write = w.Peers[beside-1].WriteKubeconfig
	}
	user, groups := administrator, []string{"system:masters"}
	if len(w.Roles) > 0 {
		user, groups = roles.User(service)
	}
	path := filepath.Join(w.Dir, fmt.Sprintf("%s-%d.kubeconfig", service, number))
	if err := write(path, user, groups...); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// ServerFiles returns the certificate of a replica.
func (w *World) ServerFiles(service string, number int) identity.Files {
	w.t.Helper()
	if w.PKI == nil {
		return identity.Files{}
	}
	files, err := w.PKI.Files(fmt.Sprintf("%s-%d", service, number), certs.ServerLeaf(service, roles.Namespace, "cluster.local"))
	if err != nil {
		w.t.Fatal(err)
	}
	return files
}

// Add adds a replica whose process does not run yet.
func (w *World) Add(service string, number int, args ...string) *Replica {
	w.t.Helper()
	cfg := server.Config{
		Service: service, Number: number, ControlPlane: w.Cluster, TLS: w.ServerFiles(service, number), Grace: stopTimeout,
		Log: filepath.Join(w.Dir, fmt.Sprintf("%s-%d.log", service, number)), Args: append([]string{"--cluster=" + w.Name, "--unlimited-loopback"}, args...),
	}
	r := &Replica{}
	if w.PKI != nil {
		cfg.Client = w.administrator()
	}
	if w.Cluster.Kubeconfig() != "" {
		cfg.Kubeconfig = w.kubeconfig(service, number)
	}
	if w.Proxies {
		config, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
		if err != nil {
			w.t.Fatal(err)
		}
		config.QPS = -1
		r.ToKube, r.ToEtcd = faultproxy.NewKube(w.t, config), relaysTo(w.t, w.Cluster)
		r.KubeLink = faultproxy.NewRelay(w.t, r.ToKube.Addr())
		cfg.Kubeconfig, cfg.Etcd = r.ToKube.KubeconfigThrough(w.t, r.KubeLink.Addr()), r.ToEtcd.endpoints()
	}
	var err error
	if r.Server, err = server.New(cfg); err != nil {
		w.t.Fatal(err)
	}
	if w.Proxies {
		r.Calls = faultproxy.NewRelay(w.t, r.GRPC)
	}
	w.t.Cleanup(r.Kill) // before its proxies, which wait for open watches
	w.Replicas = append(w.Replicas, r)
	return r
}

// administrator returns the TLS configuration of a client of the admin servers. It does not verify
// them: it reads metrics also while the certificate of a server has expired.
func (w *World) administrator() *tls.Config {
	w.t.Helper()
	files, err := w.PKI.Files(administrator, administratorLeaf())
	if err != nil {
		w.t.Fatal(err)
	}
	client, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	config := client.TLS()
	config.InsecureSkipVerify = true
	return config
}

// Start starts all replicas.
func (w *World) Start() {
	w.t.Helper()
	for _, r := range w.Replicas {
		if err := r.Start(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// Of returns the replicas of a service.
func (w *World) Of(service string) []*Replica {
	return slices.DeleteFunc(slices.Clone(w.Replicas), func(r *Replica) bool { return r.Service != service })
}

// Dial returns a connection to a replica: that of an administrator, or one without TLS to a plain
// world. It is closed after the test.
func (w *World) Dial(to *Replica) *grpc.ClientConn {
	w.t.Helper()
	conn, err := w.dial(to)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *World) dial(to *Replica) (*grpc.ClientConn, error) {
	if w.PKI == nil {
		return grpc.NewClient("passthrough:///"+to.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	return w.PKI.Dial(to.GRPC, to.Service, administrator, administratorLeaf())
}

// administrator calls for the test.
const administrator = "administrator"

func administratorLeaf() certs.Leaf { return certs.ClientLeaf(administrator, "system:masters") }

// Working returns a condition for Await: as a gateway knows it, every shard has a leader and all
// replicas are ready, and none has ended by itself.
func (w *World) Working(gateway *grpc.ClientConn) func(context.Context) error {
	return func(ctx context.Context) error {
		want := map[string]int{}
		var ended []error
		for _, r := range w.Replicas {
			want[r.Service]++
			ended = append(ended, r.Err())
		}
		_, err := Working(ctx, gateway, want)
		return errors.Join(append(ended, err)...)
	}
}

// OneOfEach returns a condition for Await: one replica of each server works.
func OneOfEach(gateway *grpc.ClientConn) func(context.Context) error {
	return func(ctx context.Context) error {
		reply, err := Working(ctx, gateway, map[string]int{Leasesvc: 1, Bootstrapsvc: 1, Slicesvc: 1, Gateway: 1})
		if err != nil {
			return err
		}
		for _, service := range reply.GetStatus().GetServices() {
			if n := len(service.GetReplicas()); n != 1 {
				return fmt.Errorf("%s has %d replicas, want 1", service.GetService(), n)
			}
		}
		return nil
	}
}

// Working returns an error unless, as a gateway knows it, every shard has a leader and as many
// replicas of each service are ready as wanted.
func Working(ctx context.Context, gateway *grpc.ClientConn, want map[string]int) (*gatewayv1.GetClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	reply, err := gatewayv1.NewClusterServiceClient(gateway).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
	if err != nil {
		return nil, err
	}
	ready := map[string]int{}
	for _, service := range reply.GetStatus().GetServices() {
		if want[service.GetService()] > 0 && service.GetLedShardCount() < service.GetShardCount() {
			return reply, fmt.Errorf("%s: %d of %d shards have a leader", service.GetService(), service.GetLedShardCount(), service.GetShardCount())
		}
		for _, replica := range service.GetReplicas() {
			if replica.GetStatus().GetReady() {
				ready[service.GetService()]++
			}
		}
	}
	if !maps.Equal(ready, want) {
		return reply, fmt.Errorf("replicas %v are ready, want %v", ready, want)
	}
	return reply, nil
}

// Await polls a condition until it holds, and returns how long that took. It fails the test with
// the last error after a time.
func Await(t testing.TB, within time.Duration, condition func(context.Context) error) (took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within+statusTimeout) // the last error is the condition's own
	defer cancel()
	began := time.Now()
	testkit.Eventually(t, within, func() error {
		err := condition(ctx)
		if took = time.Since(began); err == nil && took > within {
			return fmt.Errorf("it holds after %v", took)
		}
		return err
	})
	return took
}

// Relays are the proxies between one replica and the members of etcd, in the order of the members.
type Relays []*faultproxy.Relay

func relaysTo(t testing.TB, cluster *devcluster.Cluster) (all Relays) {
	t.Helper()
	for _, endpoint := range cluster.EtcdEndpoints() {
		all = append(all, faultproxy.NewRelay(t, strings.TrimPrefix(endpoint, "https://")))
	}
	return all
}

// endpoints are the URLs of etcd for the replica.
func (r Relays) endpoints() (urls []string) {
	for _, relay := range r {
		urls = append(urls, "https://"+relay.Addr())
	}
	return urls
}

// BlockToTarget holds the bytes to all members, or ends that.
func (r Relays) BlockToTarget(blocked bool) {
	for _, relay := range r {
		relay.BlockToTarget(blocked)
	}
}

// BlockFromTarget holds the bytes from all members, or ends that.
func (r Relays) BlockFromTarget(blocked bool) {
	for _, relay := range r {
		relay.BlockFromTarget(blocked)
	}
}

// SetDelay makes the bytes to and from all members arrive late.
func (r Relays) SetDelay(delay time.Duration) {
	for _, relay := range r {
		relay.SetDelay(delay)
	}
}

// Disconnect closes the connections to all members, and new ones while disconnected.
func (r Relays) Disconnect(disconnected bool) {
	for _, relay := range r {
		relay.Disconnect(disconnected)
	}
}
