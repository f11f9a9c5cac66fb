package terms

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// startEtcd starts an etcd of n members below dir. The test's cleanup stops it.
func startEtcd(t testing.TB, dir string, n int) *devcluster.Cluster {
	t.Helper()
	cfg := devcluster.Config{EtcdOnly: true, EtcdMembers: n}
	if n == 1 { // several members cannot have a directory that remains
		cfg.DataDir = filepath.Join(dir, "etcd")
	}
	etcd, err := devcluster.Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	return etcd
}

// connect returns a client with the production configuration.
func connect(cfg etcdconn.Config) (*clientv3.Client, error) {
	return etcdconn.Connect(cfg, slog.New(slog.DiscardHandler))
}
