package nodehealth

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	healthy     = "ready=True"
	unreachable = "node.kubernetes.io/unreachable:NoExecute node.kubernetes.io/unreachable:NoSchedule ready=Unknown"
)

// quick is leasesvc with the proportions of its defaults, in less time.
func quick() leasesvc.Config {
	cfg := leasesvc.DefaultConfig()
	class := &cfg.Classes[0]
	class.HeartbeatInterval, class.Grace = time.Second, 6*time.Second
	class.RenewInterval, class.LeaseDuration = 3*time.Second, 12*time.Second
	cfg.NodeHealth.GracePeriod, cfg.NodeHealth.NormalRate = 10*time.Second, 1
	return cfg
}

// Two Nodes that stream and one whose kubelet writes Leases die, of twelve. leasesvc taints them,
// kube-controller-manager evicts their pods, and then nothing happens any more, until one of them
// comes back.
func TestManager_EvictsFromTheNodesThatLeasesvcFindsDead(t *testing.T) {
	requireManager(t)
	cluster := ownCluster(t)
	startManager(t, cluster)
	kube := clientOf(t, cluster)
	l := simtest.StartLeasesvc(t, cluster, "beside-manager", quick(), leasesvc.NodeHealthLoop)
	members := muster(t, kube, l)
	v := watchAll(t, kube, members[0].namespace)
	want := map[string]string{}
	for _, m := range members {
		want["node "+m.name], want["pod "+m.name] = healthy, healthy
	}
	v.await(t, want)

	dead := []*member{members[0], members[2], members[1]}
	for _, m := range dead {
		m.stop()
		want["node "+m.name], want["pod "+m.name] = unreachable, "gone"
	}
	v.await(t, want)
	expectEvictions(t, kube, dead)
	v.expectQuiet(t)

	back := dead[0]
	l.Beat(back.name)
	back.reportReady(t, kube)
	back.place(t, kube)
	want["node "+back.name], want["pod "+back.name] = healthy, healthy
	v.await(t, want)
}

func ownCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	cluster, err := devcluster.Start(t.Context(), devcluster.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

func clientOf(t *testing.T, cluster *devcluster.Cluster) kubernetes.Interface {
	t.Helper()
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// await waits until all is seen as wanted.
func (v *views) await(t *testing.T, want map[string]string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if diff := cmp.Diff(want, v.all()); diff != "" {
			return fmt.Errorf("seen (-want +got):\n%s", diff)
		}
		return nil
	})
}

// expectQuiet looks on for a while, in which nothing may change.
func (v *views) expectQuiet(t *testing.T) {
	t.Helper()
	count := len(v.since(0))
	timer := time.NewTimer(*arguments.quiet)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
	if changes := v.since(count); len(changes) > 0 {
		t.Errorf("in %v of quiet: %q", *arguments.quiet, changes)
	}
}

// expectEvictions checks that it was upstream's controller that deleted the pods.
func expectEvictions(t *testing.T, kube kubernetes.Interface, dead []*member) {
	t.Helper()
	for _, m := range dead {
		testkit.Eventually(t, patience, func() error {
			events, err := kube.CoreV1().Events(m.namespace).List(t.Context(), metav1.ListOptions{
				FieldSelector: "reason=TaintManagerEviction,involvedObject.name=" + m.name,
			})
			if err != nil {
				return err
			}
			for _, event := range events.Items {
				if event.Source.Component == "taint-eviction-controller" || event.ReportingController == "taint-eviction-controller" {
					return nil
				}
			}
			return fmt.Errorf("no eviction of pod %s among the events %v", m.name, events.Items)
		})
	}
}
