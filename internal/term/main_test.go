package term_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(runChild())
	}
	code := m.Run()
	if cluster, err := sharedEtcd(); err == nil {
		if err := cluster.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stop etcd: %v\n", err)
			code = max(code, 1)
		}
	}
	// After a failed test, leftovers are a consequence and would bury the cause.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines outlived the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// sharedEtcd is the etcd of all tests that do not disturb it.
var sharedEtcd = sync.OnceValues(startEtcd)

func startEtcd() (*devcluster.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return devcluster.Start(ctx, devcluster.Config{EtcdOnly: true, Logger: slog.New(slog.DiscardHandler)})
}

// etcd returns the shared etcd.
func etcd(t testing.TB) *devcluster.Cluster {
	t.Helper()
	cluster, err := sharedEtcd()
	if err != nil {
		t.Fatalf("start etcd (missing? run `make assets`): %v", err)
	}
	return cluster
}

// ownEtcd returns an etcd that the test may stop and start.
func ownEtcd(t testing.TB) *devcluster.Cluster {
	t.Helper()
	cluster, err := startEtcd()
	if err != nil {
		t.Fatalf("start etcd (missing? run `make assets`): %v", err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("stop etcd: %v", err)
		}
	})
	return cluster
}
