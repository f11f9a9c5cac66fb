package leasesvc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// villageGrace is what each node of a village has, whether it beats or renews: long enough that a starved machine does not make
// one look dead, and much shorter than any outage here.
const villageGrace = 10 * time.Second

// village is nodes of the real kube-apiserver of which some beat over gRPC and the others renew Leases, judged by two replicas.
type village struct {
	*ward
	t         *testing.T
	a, b      *replica
	beating   []agent.Holder
	renewing  []string
	victims   []string // one of each kind, to die when the test says so
	kill      func()
	residents *agent.Agent
}

func newVillage(t *testing.T, beating, renewing int) *village {
	t.Helper()
	p := takeoverPlan(t)
	p.loops = []string{leasesvc.NodeHealthLoop}
	p.config.Classes[0].Namespace, p.config.Classes[0].Grace, p.config.Classes[0].LeaseDuration = p.cluster, villageGrace, villageGrace
	p.config.NodeHealth.GracePeriod = villageGrace
	v := &village{t: t, ward: &ward{admin: testkit.Kube(t), silent: map[string]bool{}, last: map[string]time.Time{}}}
	v.beating = crowd(p.cluster, beating)
	for _, h := range v.beating {
		v.add(t, h.Name, "a")
	}
	for i := range renewing {
		v.renewing = append(v.renewing, fmt.Sprintf("%s-kubelet-%d", p.cluster, i))
		v.add(t, v.renewing[i], "b")
	}
	v.keepRenewing(p.cluster)
	v.a, v.b = startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, v.a, v.b)
	var dying *agent.Agent
	dying, v.kill = beatFor(t, v.beating[:1], v.a, v.b)
	v.residents, _ = beatFor(t, v.beating[1:], v.a, v.b)
	awaitWelcome(t, dying, v.residents)
	v.victims = []string{v.beating[0].Name, v.renewing[0]}
	v.beating, v.renewing = v.beating[1:], v.renewing[1:]
	return v
}

func (v *village) keepRenewing(namespace string) {
	ctx, cancel := context.WithCancel(context.Background())
	var kubelets sync.WaitGroup
	for i, name := range v.renewing {
		kubelets.Go(func() { v.live(ctx, namespace, name, renewal*time.Duration(i)/time.Duration(len(v.renewing))) })
	}
	v.t.Cleanup(kubelets.Wait)
	v.t.Cleanup(cancel)
}

// expectNobodyDeclared looks at every node that lives.
func (v *village) expectNobodyDeclared(since time.Time) {
	v.t.Helper()
	all := append([]agent.Holder(nil), v.beating...)
	for _, name := range v.renewing {
		all = append(all, agent.Holder{Name: name})
	}
	found, err := notReady(v.t.Context(), v.admin, all, since)
	if err != nil {
		v.t.Fatal(err)
	}
	for _, mistake := range found {
		v.t.Errorf("declared by mistake: %s", mistake)
	}
}

// expectDeaths lets one node of each kind die, and waits until that is noticed.
func (v *village) expectDeaths() {
	v.t.Helper()
	died := time.Now()
	v.kill()
	v.silence(v.victims[1])
	testkit.Eventually(v.t, slack+relist+2*villageGrace, func() error {
		for _, name := range v.victims {
			node, err := v.admin.CoreV1().Nodes().Get(v.t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if status := conditions(node)[corev1.NodeReady]; status != corev1.ConditionUnknown {
				return fmt.Errorf("Ready of %s is %s", name, status)
			}
		}
		return nil
	})
	v.t.Logf("a node that beat and one that renewed were declared %v after their deaths, with %v for each",
		time.Since(died).Round(100*time.Millisecond), villageGrace)
}

// One of two replicas is killed, and with it half of the shards and all that it knew. Whoever lives is heard or seen in time by
// the other one.
func TestNodeHealth_ReplicaIsKilledAndNobodyIsDeclared(t *testing.T) {
	v := newVillage(t, 150, 50)
	begin := time.Now()
	lost := len(v.a.held())
	go v.a.kill()
	testkit.Eventually(t, patience, func() error {
		if n := len(v.b.held()); n != takeoverShards {
			return fmt.Errorf("%d of %d shards are held", n, takeoverShards)
		}
		return nil
	})
	t.Logf("%d of %d shards were taken over %v after the kill", lost, takeoverShards, time.Since(begin).Round(time.Millisecond))
	awaitWelcome(t, v.residents)
	time.Sleep(3 * villageGrace / 2) // whoever was to be declared by mistake is by now
	v.expectNobodyDeclared(begin)
	v.expectDeaths()
	v.expectNobodyDeclared(begin)
}

// The kube-apiserver goes away for longer than every grace, so that neither kubelets nor leasesvc can write. Sessions go on; who
// renews Leases cannot show that it lives.
func TestOutage_OfTheKubeAPIServerKillsNobody(t *testing.T) {
	v := newVillage(t, 30, 30)
	begin := time.Now()
	cluster := testkit.Cluster(t)
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(*outage) // the outage is what is tested
	if err := cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	awaitWelcome(t, v.residents)
	time.Sleep(2 * villageGrace)
	v.expectNobodyDeclared(begin)
	v.expectDeaths()
	v.expectNobodyDeclared(begin)
}
