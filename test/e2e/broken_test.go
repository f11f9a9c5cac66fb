package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// A replica that reaches etcd and not its kube-apiserver is a member like any other, and must cost
// the healthy one nothing.
func TestServers_AReplicaWithoutItsAPIServerGetsNoShard(t *testing.T) {
	t.Parallel() // it mostly waits, and needs Services only
	cluster, kube := testkit.Cluster(t), testkit.Kube(t)
	namespace := testkit.Namespace(t, kube)
	all := float64(slicesvc.DefaultConfig().Shards)
	healthy := serve(t, cluster, "slicesvc", "--cluster=broken")
	testkit.Eventually(t, 30*time.Second, func() error { return healthy.counts("trivet_terms_held", all) })

	broken := serve(t, cluster, "slicesvc", "--cluster=broken", "--kubeconfig="+deadKubeconfig(t, cluster))
	testkit.Eventually(t, 30*time.Second, func() error { return broken.said("msg=joined") })
	for began := time.Now(); time.Since(began) < 15*time.Second; { // beyond every time after which anything might move
		if err := healthy.counts("trivet_terms_held", all); err != nil {
			t.Fatal(err)
		}
		<-time.After(500 * time.Millisecond)
	}
	if err := errors.Join(broken.counts("trivet_terms_held", 0), broken.counts("trivet_term_ready", 0)); err != nil {
		t.Error(err)
	}
	for i := range 8 { // of different shards
		makeService(t, kube, namespace, fmt.Sprintf("web-%d", i))
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		for i := range 8 {
			if err := hasSlice(t, kube, namespace, fmt.Sprintf("web-%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// deadKubeconfig is the cluster's kubeconfig with an address at which no server listens.
func deadKubeconfig(t *testing.T, cluster *devcluster.Cluster) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(cluster.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range config.Clusters {
		known.Server = "https://127.0.0.1:1"
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// counts is nil if a metric without labels has the value.
func (r *running) counts(metric string, want float64) error {
	i, err := issued()
	if err != nil {
		return err
	}
	code, body, err := fetchAs(i.peer, "https://"+r.admin+"/metrics")
	if err != nil || code != http.StatusOK {
		return fmt.Errorf("metrics: %d, %w", code, err)
	}
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(line, metric+" "); ok {
			got, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil || got != want {
				return fmt.Errorf("%s = %s, want %v", metric, strings.TrimSpace(text), want)
			}
			return nil
		}
	}
	return fmt.Errorf("no metric %s", metric)
}
