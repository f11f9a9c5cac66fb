package agent_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	shards = 16
	// beatEvery is also how often a Lease is written.
	beatEvery = time.Second
	// leaseDuration covers the end of a replica's session, one beat, and a busy machine.
	leaseDuration = beatEvery + term.DefaultTTL + 3*time.Second
)

// replica is a leasesvc on loopback, on the real etcd and kube-apiserver.
type replica struct {
	address   string
	candidate *term.Candidate
	service   *leasesvc.Service
	stop      func()
}

// startReplica starts a replica and records its writes.
func startReplica(t *testing.T, cluster, id string, writes *writeLog) *replica {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	r := &replica{address: listener.Addr().String()}
	member := term.Member{ID: id, Service: leasesvc.ServiceName, Cluster: cluster, GRPCAddress: r.address, StartTime: time.Now()}
	if r.candidate, err = term.New(testkit.Etcd(t), term.Config{Member: member, Shards: shards, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	rest := testkit.Cluster(t).RESTConfig()
	rest.QPS = -1 // the number of writers limits the load
	rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return &recorder{writes: writes, next: next} })
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(rest))
	if err != nil {
		t.Fatal(err)
	}
	cfg := leasesvc.DefaultConfig()
	cfg.Shards, cfg.Classes[0].Namespace = shards, cluster
	cfg.Classes[0].HeartbeatInterval, cfg.Classes[0].RenewInterval = beatEvery, beatEvery
	cfg.Classes[0].Grace, cfg.Classes[0].LeaseDuration = leaseDuration, leaseDuration
	r.service, err = leasesvc.New(cfg, leasesvc.Deps{Member: member, Kube: kube, Leadership: r.candidate, Logger: logger, LoopSelection: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	r.serve(t, listener, logger)
	return r
}

// serve runs the replica until stop, which stops its parts in the order in which a process does.
func (r *replica) serve(t *testing.T, listener net.Listener, logger *slog.Logger) {
	cfg := rpcserver.DefaultConfig(r.address)
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: logger, Unvalidated: leasesvc.Unvalidated()})
	if err != nil {
		t.Fatal(err)
	}
	server.Register(r.service.Register)
	stopServing := background(t, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	stopWorking := background(t, r.service.Run)
	r.stop = func() {
		stopServing()
		stopWorking()
	}
	t.Cleanup(r.stop)
}

// background runs f until stop is called. stop may be called again.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			t.Errorf("ended: %v", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func dialLoopback(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// holds returns the number of shards that the replica holds.
func (r *replica) holds() int {
	n := 0
	for _, holding := range r.candidate.Status().Shards {
		if holding.Here {
			n++
		}
	}
	return n
}

// writeLog records the writes of Leases by all replicas.
type writeLog struct {
	mu       sync.Mutex // guards the fields below
	problems []string   // writes without the live term of their lease's shard
	epochs   map[string]int64
	count    int
}

// recorder is a transport below the fence, so that it sees the requests that are sent.
type recorder struct {
	writes *writeLog
	next   http.RoundTripper
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		r.writes.add(request)
	}
	return r.next.RoundTrip(request)
}

func (l *writeLog) add(request *http.Request) {
	what := request.Method + " " + request.URL.Path
	t, ok := term.FromContext(request.Context())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	name := path.Base(request.URL.Path)
	switch {
	case !ok || t.Check() != nil:
		l.problems = append(l.problems, what+": no live term")
	case request.Method == http.MethodPost: // the path does not contain the name of the Lease
	case shard.Of("node", name, shards) != t.Shard():
		l.problems = append(l.problems, what+": under the term of another shard")
	case t.Epoch() < l.epochs[name]:
		l.problems = append(l.problems, what+": under an older term than the write before")
	default:
		l.epochs[name] = t.Epoch()
	}
}
