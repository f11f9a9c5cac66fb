package testkit

import (
	"context"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

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
