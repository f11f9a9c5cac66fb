// Package bootstraptest runs replicas of bootstrapsvc on the real control plane of a test binary.
package bootstraptest

import (
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// Soon is the time limit for immediate effects on a loaded machine.
const Soon = time.Minute

// Replica is one bootstrapsvc on the real etcd and kube-apiserver of the test binary.
type Replica struct {
	Service *bootstrapsvc.Service
	// NotReady makes the stand-in for the kube-apiserver that the replica probes not ready.
	NotReady atomic.Bool

	etcd  *clientv3.Client // of the term
	stop  context.CancelFunc
	ended chan error
}

// Options describe a replica. Only Address is required.
type Options struct {
	// Address is the address of the kube-apiserver beside the replica.
	Address string
	// Probed is how to reach that kube-apiserver. Nil: a stand-in.
	Probed *rest.Config
	// Kube is how the replica reaches the kube-apiserver of the test binary. Nil: directly.
	Kube *rest.Config
	// Etcd is the client for all but the term. Nil: that of the term.
	Etcd      *clientv3.Client
	Loops     []string // as for --loops
	Configure func(*bootstrapsvc.Config)
}

// Start runs a replica until the test ends. Replicas of one test share its keys.
func Start(t *testing.T, o Options) *Replica {
	t.Helper()
	r := &Replica{ended: make(chan error, 1)}
	if o.Probed == nil {
		o.Probed = r.standIn(t)
	}
	if o.Kube == nil {
		o.Kube = testkit.Cluster(t).RESTConfig()
	}
	var err error
	if r.etcd, err = testkit.Cluster(t).EtcdClient(); err != nil {
		t.Fatal(err)
	}
	if o.Etcd == nil {
		o.Etcd = r.etcd
	}
	member := term.Member{
		ID:      "replica-" + strings.Trim(strings.NewReplacer(".", "-", ":", "-", ",", "-").Replace(o.Address), "-") + "-" + fmt.Sprint(time.Now().UnixNano()),
		Service: "bootstrapsvc", Cluster: strings.ToLower(strings.NewReplacer("_", "-", "/", "-", " ", "-").Replace(t.Name())),
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil)).With("beside", o.Address)
	candidate, err := term.New(r.etcd, term.Config{Member: member, Shards: 1, TTL: term.DefaultTTL, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	o.Kube.WarningHandler = rest.NoWarnings{}
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(o.Kube))
	if err != nil {
		t.Fatal(err)
	}
	cfg := bootstrapsvc.DefaultConfig()
	cfg.AdvertiseAddress, cfg.APIServerPort = o.Address, 6443
	if o.Configure != nil {
		o.Configure(&cfg)
	}
	r.Service, err = bootstrapsvc.New(cfg, bootstrapsvc.Deps{
		Member: member, Kube: kube, KubeConfig: o.Probed, Etcd: o.Etcd,
		Leadership: candidate, Logger: logger, Metrics: prometheus.NewRegistry(), LoopSelection: o.Loops,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.Service.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-r.ended; err != nil {
			t.Logf("Run = %v", err) // as after Kill
		}
		_ = r.etcd.Close() // fails after Kill
	})
	return r
}

// standIn starts a server that answers as a kube-apiserver that is ready, and returns how to reach
// it.
func (r *Replica) standIn(t *testing.T) *rest.Config {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if r.NotReady.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

// Connect returns a connection to the RPCs of the replica.
func (r *Replica) Connect(t *testing.T) grpc.ClientConnInterface {
	t.Helper()
	return testkit.Serve(t, r.Service.Register)
}

// End stops a replica in good order and waits.
func (r *Replica) End(t *testing.T) {
	t.Helper()
	r.stop()
	err := <-r.ended
	r.ended <- err // for the cleanup
	if err != nil {
		t.Errorf("Run = %v", err)
	}
}

// Kill disconnects a replica from etcd, so that it can neither renew its session nor clean up.
func (r *Replica) Kill() { _ = r.etcd.Close() }

// Leads returns whether the replica has the term.
func (r *Replica) Leads() bool {
	_, known := r.Service.Counts()["namespaces"]
	return known
}
