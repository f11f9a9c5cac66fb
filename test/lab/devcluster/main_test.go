package devcluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnvironment); dir != "" {
		os.Exit(beParent(dir))
	}
	goleak.VerifyTestMain(m)
}

// begin runs a cluster and stops it after the test.
func begin(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	cluster, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return cluster
}

// ownTempDir sets a temporary directory for the test, in which it can check remaining files.
func ownTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 0 {
		t.Errorf("left in the temporary directory: %v", entries)
	}
}

// eventually is a copy of testkit.Eventually, because testkit imports this package.
func eventually(t *testing.T, timeout time.Duration, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", timeout, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// gone returns nil if none of these processes runs.
func gone(pids ...int) error {
	for _, pid := range pids {
		if running(pid) {
			return fmt.Errorf("process %d still runs", pid)
		}
	}
	return nil
}

func (c *Cluster) pids() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pids []int
	for _, s := range append(slices.Clone(c.etcd), c.apiServer) {
		if s != nil && s.child != nil {
			pids = append(pids, s.child.PID())
		}
	}
	return pids
}
