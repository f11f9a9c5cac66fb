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

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// replica is one bootstrapsvc that only audits and repairs allocations.
type replica struct {
	bootstrapv1.FindingServiceClient
	bootstrapv1.RepairServiceClient
	etcd        *clientv3.Client
	interrupter *interrupter
	stop        context.CancelFunc
	done        chan struct{}
}

// replicaConfig configures a replica.
type replicaConfig struct {
	cluster     *devcluster.Cluster     // nil for the shared cluster
	name        string                  // --cluster: replicas with the same name compete for one term; empty for the test's name
	auto        bootstrapsvc.AutoRepair // empty for the default
	ports       string                  // --service-node-port-range; empty for the stored range
	ttl         time.Duration           // of the session; 0 for the default
	interrupter *interrupter            // interrupts writes; may be nil
}

var replicas atomic.Int64

// startReplica starts a replica and returns at once. The test's cleanup stops it.
func startReplica(t *testing.T, s replicaConfig) *replica {
	t.Helper()
	if s.cluster == nil {
		s.cluster = testkit.Cluster(t)
	}
	etcd, config := s.interrupter.clients(t, s.cluster)
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
	r := &replica{etcd: etcd, interrupter: s.interrupter, done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		defer close(r.done)
		if err := service.Run(ctx); err != nil && s.interrupter == nil {
			t.Errorf("Run = %v", err)
		}
	}()
	t.Cleanup(func() {
		r.end()
		etcd.Close()
	})
	connection := testkit.Serve(t, service.Register)
	r.FindingServiceClient, r.RepairServiceClient = bootstrapv1.NewFindingServiceClient(connection), bootstrapv1.NewRepairServiceClient(connection)
	return r
}

// end stops the replica gracefully. It does nothing if the replica is stopped.
func (r *replica) end() {
	r.stop()
	<-r.done
}

// waitForAudit waits until the replica leads and has completed an audit.
func (r *replica) waitForAudit(t *testing.T) *bootstrapv1.AuditAllocationsResponse {
	t.Helper()
	var audit *bootstrapv1.AuditAllocationsResponse
	testkit.Eventually(t, waitTimeout, func() (err error) {
		audit, err = r.AuditAllocations(t.Context(), &bootstrapv1.AuditAllocationsRequest{})
		return err
	})
	return audit
}

// startTwo starts two replicas that compete for one term, each with its own interrupter. It returns
// the leader first, once the leader has led for leadershipSettleTime: the term can move when the
// second replica joins.
func startTwo(t *testing.T, s replicaConfig) (leader, other *replica) {
	t.Helper()
	var both [2]*replica
	for i := range both {
		s.interrupter = newInterrupter()
		both[i] = startReplica(t, s)
	}
	for since := time.Now(); time.Since(since) < leadershipSettleTime; {
		before := leader
		testkit.Eventually(t, waitTimeout, func() (err error) {
			for i, r := range both {
				if _, err = r.AuditAllocations(t.Context(), &bootstrapv1.AuditAllocationsRequest{}); err == nil {
					leader, other = r, both[1-i]
					return nil
				}
			}
			return err
		})
		if leader != before {
			since = time.Now()
		}
		testkit.Pause(t.Context(), 50*time.Millisecond)
	}
	return leader, other
}

// leadershipSettleTime is the time after which a leader does not lose the term to a new replica.
const leadershipSettleTime = time.Second
