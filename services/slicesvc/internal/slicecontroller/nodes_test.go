package slicecontroller_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// A Node is deleted. As with upstream, the endpoints of its Pods stay until the next sync of the
// Service, whatever that is for, and a change of another Pod is enough.
func TestRun_NextSyncDropsPodsOfADeletedNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		controller.PutNode(node("node-b", "zone-b"))
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3", onNode("node-b")))
		advance(time.Minute)
		cluster.takeWrites()
		controller.DeleteNode(node("node-a", "zone-a"))
		advance(time.Minute)
		if got := cluster.takeWrites(); got != 0 {
			t.Fatalf("%d writes because a node is gone, want none", got)
		}
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3", onNode("node-b"), slicetest.Unready))
		advance(time.Minute)
		if got := describe(cluster.onlySlice(t)); got != "10.1.0.3 zone-b" {
			t.Errorf("slice has %q after a change of a pod, want only that pod", got)
		}
		checkNoPlan(t, controller, "web")
	})
}

func onNode(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = name }
}

func checkNoPlan(t *testing.T, controller *slicecontroller.Controller, service string) {
	t.Helper()
	if preview, _ := controller.Preview(key(service)); !preview.Plan.Empty() {
		t.Errorf("after a sync of %s a plan is left: %+v", service, preview.Plan.Changes)
	}
}

// Whatever happens to Nodes and Pods: after a sync of a Service, a plan of everything has nothing
// to add to the plans of changes.
func TestRun_PlansOfChangesEqualPlansOfEverythingWhileNodesChange(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 12))
				controller, _ := start(t)
				holdAllShards(t, controller)
				controller.PutService(slicetest.Service("web", func(service *corev1.Service) {
					service.Spec.PublishNotReadyAddresses = seed%4 == 0
				}))
				for range 150 {
					name := fmt.Sprintf("node-%d", random.IntN(3))
					pod := random.IntN(8)
					switch random.IntN(6) {
					case 0, 1:
						controller.PutNode(node(name, fmt.Sprintf("zone-%d", random.IntN(2))))
					case 2:
						controller.DeleteNode(node(name, ""))
					case 3:
						controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", pod), slicetest.Address(pod)))
					default:
						var changes []func(*corev1.Pod)
						if random.IntN(2) == 0 {
							changes = append(changes, slicetest.Unready)
						}
						controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", pod), slicetest.Address(pod), append(changes, onNode(name))...))
					}
					if random.IntN(3) > 0 {
						continue
					}
					// A change of this pod always causes a sync.
					flag := slicetest.Pod("flag", "10.9.0.1", onNode("always"))
					if random.IntN(2) == 0 {
						slicetest.Unready(flag)
					}
					controller.PutNode(node("always", "zone-0"))
					flag.Spec.Hostname = fmt.Sprint(random.Uint32())
					flag.Spec.Subdomain = "web"
					controller.PutPod(flag)
					advance(10 * time.Second)
					checkNoPlan(t, controller, "web")
				}
			})
		})
	}
}
