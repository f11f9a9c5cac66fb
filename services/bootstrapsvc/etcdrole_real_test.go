package bootstrapsvc_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/etcdroles"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// The service runs against an etcd with users and exactly the documented role. Without one of the
// rights it says so, and does not call etcd unavailable.
func TestReal_DocumentedEtcdRoleSuffices(t *testing.T) {
	t.Parallel()
	cluster := testkit.OwnCluster(t, devcluster.Config{})
	root := testkit.EnableEtcdUsers(t, cluster, etcdroles.Of(etcdconn.KeyPrefix("prod-1"), etcdroles.DefaultRegistry))
	user := etcdroles.User("bootstrapsvc")
	etcd, err := etcdconn.Connect(testkit.EtcdAs(t, cluster, user), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { etcd.Close() })
	member := term.Member{ID: "replica-1", Service: "bootstrapsvc", Cluster: "prod-1"}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	candidate, err := term.New(etcd, term.Config{Member: member, Shards: 1, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(quiet(cluster.RESTConfig())))
	if err != nil {
		t.Fatal(err)
	}
	cfg := bootstrapsvc.DefaultConfig()
	cfg.AdvertiseAddress, cfg.APIServerPort, cfg.Endpoints.AdoptMasterLeases = "10.99.8.1", 6443, true
	service, err := bootstrapsvc.New(cfg, bootstrapsvc.Deps{
		Member: member, Kube: kube, KubeConfig: cluster.RESTConfig(), Etcd: etcd,
		Leadership: candidate, Logger: logger, Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	// The endpoints are written, and every loop has made a pass without an error.
	testkit.Eventually(t, time.Minute, func() error {
		if published := service.Counts()["endpoint_addresses"]; published != 1 {
			return fmt.Errorf("%d addresses are published, want 1", published)
		}
		for _, l := range service.Loops().Status() {
			if l.State != loop.Running || l.LastError != "" {
				return fmt.Errorf("loop %s is %v: %s", l.Name, l.State, l.LastError)
			}
		}
		return service.Loops().CheckReady()
	})

	if _, err := root.RoleRevokePermission(t.Context(), user, "/registry/masterleases/", clientv3.GetPrefixRangeEnd("/registry/masterleases/")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() error {
		status := service.Loops().Status()
		i := slices.IndexFunc(status, func(l loop.Status) bool { return l.Name == "masterlease-probe" })
		if cause := status[i].LastError; !strings.Contains(cause, "etcd denies access") || strings.Contains(cause, "unavailable") {
			return fmt.Errorf("without the right to read master leases, the loop says %q", cause)
		}
		return nil
	})
}
