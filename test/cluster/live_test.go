package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/nodecluster"
)

var (
	withCluster = flag.Bool("cluster", false, "start a cluster with real nodes for the tests that need one; needs root")
	keepCluster = flag.String("cluster.dir", "", "directory of a cluster that runs already, such as make cluster's, which stays")
)

const downTimeout = 2 * time.Minute

// live is the cluster that all tests of a run share. A test leaves it whole: nodes on, kubelets
// running, nothing frozen.
var live struct {
	once    sync.Once
	cluster *nodecluster.Cluster
	err     error
}

// liveCluster returns the shared cluster with everything in it ready. The first test starts it.
func liveCluster(t *testing.T) *nodecluster.Cluster {
	t.Helper()
	if !*withCluster && *keepCluster == "" {
		t.Skip("needs -cluster and root: run `make test-cluster`")
	}
	live.once.Do(func() { live.cluster, live.err = startLive() })
	if live.err != nil {
		t.Fatal(live.err)
	}
	if err := live.cluster.WaitReady(t.Context(), upTimeout); err != nil {
		t.Fatalf("a test before this one has left the cluster broken: %v", err)
	}
	return live.cluster
}

func startLive() (*nodecluster.Cluster, error) {
	if *keepCluster != "" {
		return nodecluster.Open(*keepCluster)
	}
	dir, err := os.MkdirTemp("", "trivet-cluster-")
	if err != nil {
		return nil, err
	}
	paths := []string{*arguments.assets, *arguments.binaries}
	for i := range paths {
		if paths[i], err = filepath.Abs(paths[i]); err != nil {
			return nil, err
		}
	}
	config := nodecluster.DefaultConfig(dir, paths[0], paths[1])
	config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, cancel := context.WithTimeout(context.Background(), upTimeout)
	defer cancel()
	return nodecluster.Start(ctx, config)
}

// endLive ends the shared cluster and says what is left of it.
func endLive() error {
	if live.cluster == nil || *keepCluster != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
	defer cancel()
	return errors.Join(live.cluster.Down(ctx), nothingLeft(live.cluster))
}

// nothingLeft looks for mounts, cgroups, processes and files of an ended cluster.
func nothingLeft(c *nodecluster.Cluster) error {
	var problems []error
	if _, err := os.Stat(c.Dir()); !errors.Is(err, os.ErrNotExist) {
		problems = append(problems, fmt.Errorf("%s is left (%w)", c.Dir(), err))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	problems = append(problems, err)
	if strings.Contains(string(mounts), c.Dir()) {
		problems = append(problems, fmt.Errorf("mounts below %s are left", c.Dir()))
	}
	for _, node := range c.Nodes() {
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			left, err := filepath.Glob(pattern + node.Cgroup())
			problems = append(problems, err)
			if len(left) > 0 {
				problems = append(problems, fmt.Errorf("cgroups of node %s are left: %v", node.Name, left))
			}
		}
		if left, err := node.Processes(""); err != nil || len(left) > 0 {
			problems = append(problems, fmt.Errorf("processes of node %s are left: %v (%w)", node.Name, left, err))
		}
	}
	return errors.Join(problems...)
}
