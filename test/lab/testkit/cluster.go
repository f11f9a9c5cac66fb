package testkit

import (
	"context"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/clusterpool"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// startTimeout bounds the start of the shared cluster on a busy machine.
const startTimeout = 3 * time.Minute

// sharedCluster is made at most once, by the first test that needs it.
type sharedCluster struct {
	once    sync.Once
	cluster *devcluster.Cluster
	err     error
}

// shared is a global because the testing package has no other scope for a whole test binary.
var shared sharedCluster

func (s *sharedCluster) get() (*devcluster.Cluster, error) {
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		s.cluster, s.err = newCluster(ctx)
	})
	return s.cluster, s.err
}

// newCluster borrows a control plane from the test run, and starts one outside of a test run.
func newCluster(ctx context.Context) (*devcluster.Cluster, error) {
	if dir := devcluster.RunDir(); dir != "" {
		return clusterpool.Borrow(dir)
	}
	return devcluster.Start(ctx, devcluster.Config{})
}

// stop also prevents a later start.
func (s *sharedCluster) stop() error {
	s.once.Do(func() {})
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Stop()
}

// Cluster returns the control plane that all tests of this binary share. It fails the test if the
// cluster cannot start or one of its servers has died.
func Cluster(t testing.TB) *devcluster.Cluster {
	t.Helper()
	cluster, err := shared.get()
	if err != nil {
		t.Fatalf("start the shared control plane: %v", err)
	}
	if err := cluster.Err(); err != nil {
		t.Fatalf("the shared control plane is broken: %v", err)
	}
	return cluster
}

// Etcd returns a client of the shared cluster's etcd, closed after the test.
func Etcd(t testing.TB) *clientv3.Client {
	t.Helper()
	client, err := Cluster(t).EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close etcd client: %v", err)
		}
	})
	return client
}

// Kube returns an administrator's client of the shared cluster. It writes without a term.
func Kube(t testing.TB) kubernetes.Interface {
	t.Helper()
	config := Cluster(t).RESTConfig()
	config.WarningHandler = rest.NoWarnings{} // "Endpoints is deprecated", at every call
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatalf("make Kubernetes client: %v", err)
	}
	return client
}

// OwnCluster starts a control plane for one test, which may stop its servers, and stops it after
// the test. Prefer Cluster: a start takes seconds.
func OwnCluster(t testing.TB, cfg devcluster.Config) *devcluster.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	cluster, err := devcluster.Start(ctx, cfg)
	if err != nil {
		t.Fatalf("start a control plane: %v", err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("stop the control plane of the test: %v", err)
		}
	})
	return cluster
}

// FreeAddress returns a loopback address without a listener. No other call in this process returns
// it.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := devcluster.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
