package leasesvc_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/kubernetes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// replicaTTL is the shortest TTL that a term allows, for fast takeovers.
const replicaTTL = 2 * time.Second

// replica is a leasesvc on loopback with terms in the real etcd.
type replica struct {
	t         *testing.T
	address   string
	candidate *term.Candidate
	service   *leasesvc.Service
	client    leasev1.HeartbeatServiceClient
	peers     leasev1.PeerServiceClient
	leases    leasev1.LeaseServiceClient
	registry  *prometheus.Registry
	// cut is set while nothing that others send arrives.
	cut *atomic.Bool
	// stop stops its parts in the order in which a process does; kill ends them without a message
	// to any other process. Both may be called again.
	stop, kill func()
}

// replicaConfig is shared by the replicas of a test.
type replicaConfig struct {
	plane   *devcluster.Cluster
	admin   kubernetes.Interface
	cluster string // also the namespace of testkit.ObjectsOf
	config  leasesvc.Config
	loops   []string
}

func startReplica(t *testing.T, id string, p replicaConfig) *replica {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})).With("replica", id)
	cfg := etcdconn.Config{Endpoints: p.plane.EtcdEndpoints()}
	cfg.CAFile, cfg.CertFile, cfg.KeyFile = p.plane.EtcdFiles()
	etcd, err := etcdconn.Connect(cfg, logger) // each replica has its own connection, which kill closes
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	killable := &killableListener{Listener: listener, open: map[net.Conn]struct{}{}}
	r := &replica{t: t, address: listener.Addr().String(), registry: prometheus.NewRegistry(), cut: &killable.cut}
	member := term.Member{ID: id, Service: leasesvc.ServiceName, Cluster: p.cluster, GRPCAddress: r.address, StartTime: time.Now()}
	r.candidate, err = term.New(etcd, term.Config{Member: member, Shards: p.config.Shards, TTL: replicaTTL, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	rest := kubeconn.Fence(testkit.ObjectsOf(p.plane.RESTConfig(), p.cluster))
	rest.QPS = -1 // the number of writers limits the load
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	r.service, err = leasesvc.New(p.config, leasesvc.Deps{
		Member: member, Kube: kube, Leadership: r.candidate, Etcd: etcd, Dial: dialLoopback, Logger: logger,
		Metrics: r.registry, LoopSelection: append([]string{"*"}, p.loops...),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.serve(killable, logger, func() { _ = etcd.Close() })
	connection, err := dialLoopback(r.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	r.client, r.peers = leasev1.NewHeartbeatServiceClient(connection), leasev1.NewPeerServiceClient(connection)
	r.leases = leasev1.NewLeaseServiceClient(connection)
	return r
}

// serve runs the replica until stop or kill.
func (r *replica) serve(killable *killableListener, logger *slog.Logger, closeEtcd func()) {
	cfg := rpcserver.DefaultConfig(r.address)
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: logger, Unvalidated: leasesvc.Unvalidated()})
	if err != nil {
		r.t.Fatal(err)
	}
	server.Register(r.service.Register)
	served, working := background(func(ctx context.Context) error { return server.Serve(ctx, killable) }), background(r.service.Run)
	var once sync.Once
	end := func(orderly bool) {
		once.Do(func() {
			if !orderly {
				// The parts then find no etcd and no connection, so that they can announce nothing.
				closeEtcd()
				killable.kill()
			}
			for _, stop := range []func() error{served, working} {
				if err := stop(); err != nil && orderly {
					r.t.Errorf("%s ended: %v", r.address, err)
				}
			}
			closeEtcd()
		})
	}
	r.stop, r.kill = func() { end(true) }, func() { end(false) }
	r.t.Cleanup(r.stop)
}

// background runs f until stop is called, which returns the result of f.
func background(f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

func dialLoopback(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// held returns the shards that the replica holds.
func (r *replica) held() map[int]bool {
	held := map[int]bool{}
	for _, holding := range r.candidate.Status().Shards {
		if holding.Here {
			held[holding.Shard] = true
		}
	}
	return held
}

// beats returns a metric of forwarded beats with a label value; 0 if there is none.
func (r *replica) beats(name, result string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.Metric {
			if len(metric.Label) == 1 && metric.Label[0].GetValue() == result {
				return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// killable closes its connections like a process that is killed.
type killableListener struct {
	net.Listener

	cut  atomic.Bool
	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

func (l *killableListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[conn] = struct{}{}
	return &cutConn{Conn: conn, cut: &l.cut}, nil
}

// cutConn reads nothing while the replica is cut, and writes as ever.
type cutConn struct {
	net.Conn
	cut    *atomic.Bool
	closed atomic.Bool
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for c.cut.Load() && !c.closed.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	return n, err
}

func (c *cutConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (l *killableListener) kill() {
	l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.open {
		conn.Close()
	}
}

// beatFor runs an agent for the holders until stop is called or the test ends.
func beatFor(t *testing.T, holders []agent.Holder, targets ...*replica) (a *agent.Agent, stop func()) {
	t.Helper()
	return beatOrRenew(t, holders, nil, targets...)
}

// beatOrRenew is beatFor with a writer of Leases for beats that are not acknowledged; nil for none.
func beatOrRenew(t *testing.T, holders []agent.Holder, renew func(context.Context, agent.Holder) error, targets ...*replica) (a *agent.Agent, stop func()) {
	t.Helper()
	cfg := agent.Config{Holders: holders, Dial: dialLoopback, MaxBackoff: time.Second, Unacknowledged: renew}
	for _, r := range targets {
		cfg.Targets = append(cfg.Targets, r.address)
	}
	a, err := agent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	end := background(a.Run)
	stop = sync.OnceFunc(func() {
		if err := end(); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	t.Cleanup(stop)
	return a, stop
}

// agentHolders returns n holders of the class "node" with a name prefix.
func agentHolders(prefix string, n int) []agent.Holder {
	holders := make([]agent.Holder, n)
	for i := range holders {
		holders[i] = agent.Holder{Class: leasesvc.NodeClass, Name: fmt.Sprintf("%s-%d", prefix, i), BootID: "1"}
	}
	return holders
}

func awaitRegistered(t *testing.T, agents ...*agent.Agent) {
	t.Helper()
	testkit.Eventually(t, 60*time.Second, func() error {
		for _, a := range agents {
			if s := a.Status(); s.Registered != s.Holders {
				return fmt.Errorf("%d of %d holders are registered: %s", s.Registered, s.Holders, s.LastError)
			}
		}
		return nil
	})
}

// expiryWatcher records which holders a replica reports as expired.
type expiryWatcher struct {
	mu   sync.Mutex // guards seen
	seen map[string]string
}

// watchExpired polls ten times a second until the end of the test, and ignores replicas that do not
// answer.
func watchExpired(t *testing.T, replicas ...*replica) *expiryWatcher {
	c := &expiryWatcher{seen: map[string]string{}}
	for _, r := range replicas {
		c.follow(t, r)
	}
	return c
}

func (c *expiryWatcher) follow(t *testing.T, r *replica) {
	stop := background(func(ctx context.Context) error {
		for ctx.Err() == nil {
			c.look(ctx, r)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		return nil
	})
	t.Cleanup(func() { _ = stop() })
}

func (c *expiryWatcher) look(ctx context.Context, r *replica) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	response, err := r.leases.ListLeases(ctx, &leasev1.ListLeasesRequest{States: []leasev1.Lease_State{leasev1.Lease_STATE_EXPIRED}, PageSize: 5000})
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, lease := range response.Leases {
		c.seen[lease.Holder.Name] = fmt.Sprintf("at %s, last heard at %v", r.address, lease.ObserveTime.AsTime())
	}
}

// expectNotExpired reports the holders that were expired at any time.
func (c *expiryWatcher) expectNotExpired(t *testing.T, what string, holders []agent.Holder) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range holders {
		if where, expired := c.seen[h.Name]; expired {
			t.Errorf("%s: %s was expired %s", what, h.Name, where)
		}
	}
}
