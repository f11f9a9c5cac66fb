package damage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
)

// replica is one bootstrapsvc that keeps nothing but allocations: who is published is another matter.
type replica struct {
	bootstrapv1.BootstrapServiceClient
	etcd  *clientv3.Client
	blade *blade
	stop  context.CancelFunc
	done  chan struct{}
}

// setting is what a test decides of a replica.
type setting struct {
	cluster *devcluster.Cluster     // nil: the shared one
	name    string                  // --cluster: replicas of one name compete for one term; empty: the test's
	auto    bootstrapsvc.AutoRepair // empty: its default
	ports   string                  // --service-node-port-range; empty: as stored
	ttl     time.Duration           // of the session; 0: its default
	blade   *blade                  // cuts its writes off; nil: nobody does
}

var replicas atomic.Int64

// startReplica runs a replica until the test ends. It returns at once.
func startReplica(t *testing.T, s setting) *replica {
	t.Helper()
	if s.cluster == nil {
		s.cluster = testkit.Cluster(t)
	}
	etcd, config := s.blade.over(t, s.cluster)
	if s.name == "" {
		s.name, _, _ = strings.Cut(t.Name(), "/")
	}
	member := term.Member{
		ID: fmt.Sprintf("replica-%d", replicas.Add(1)), Service: "bootstrapsvc",
		Cluster: strings.ToLower(strings.ReplaceAll(s.name, "_", "-")),
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil)).With("replica", member.ID)
	candidate, err := term.New(etcd, term.Config{Member: member, Shards: 1, TTL: s.ttl, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	config = kubeconn.Fence(config)
	config.WarningHandler = rest.NoWarnings{}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	cfg := bootstrapsvc.DefaultConfig()
	cfg.APIServerPort, cfg.Audit.NodePortRange = 6443, s.ports
	if s.auto != "" {
		cfg.Audit.AutoRepair = s.auto
	}
	service, err := bootstrapsvc.New(cfg, bootstrapsvc.Deps{
		Member: member, Kube: kube, KubeConfig: config, Etcd: etcd,
		Leadership: candidate, Logger: logger, Metrics: prometheus.NewRegistry(),
		LoopSelection: []string{"*", "-apiserver-probe", "-kubernetes-endpoints"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{etcd: etcd, blade: s.blade, done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		defer close(r.done)
		if err := service.Run(ctx); err != nil && s.blade == nil {
			t.Errorf("Run = %v", err)
		}
	}()
	t.Cleanup(func() {
		r.end()
		etcd.Close()
	})
	r.BootstrapServiceClient = bootstrapv1.NewBootstrapServiceClient(testkit.Serve(t, service.Register))
	return r
}

// end stops the replica in good order. Ending it again does nothing.
func (r *replica) end() {
	r.stop()
	<-r.done
}

// audits waits until the replica leads and has compared everything once, without trouble.
func (r *replica) audits(t *testing.T) *bootstrapv1.AuditResponse {
	t.Helper()
	var audit *bootstrapv1.AuditResponse
	testkit.Eventually(t, soon, func() (err error) {
		audit, err = r.Audit(t.Context(), &bootstrapv1.AuditRequest{})
		return err
	})
	return audit
}

// startTwo starts two replicas that compete for one term, each with a blade of its own, and tells which one has it once that
// has settled: the term may move to the second when it joins.
func startTwo(t *testing.T, s setting) (leader, other *replica) {
	t.Helper()
	var both [2]*replica
	for i := range both {
		s.blade = newBlade()
		both[i] = startReplica(t, s)
	}
	for since := time.Now(); time.Since(since) < settledFor; {
		before := leader
		testkit.Eventually(t, soon, func() (err error) {
			for i, r := range both {
				if _, err = r.Audit(t.Context(), &bootstrapv1.AuditRequest{}); err == nil {
					leader, other = r, both[1-i]
					return nil
				}
			}
			return err
		})
		if leader != before {
			since = time.Now()
		}
		pause(t.Context(), 50*time.Millisecond)
	}
	return leader, other
}

// settledFor is how long a replica must have led not to lose the term to one that has just joined.
const settledFor = time.Second
