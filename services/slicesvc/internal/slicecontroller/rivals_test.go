package slicecontroller_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// rivals edit slices as two controllers with old views would, and delete some.
type rivals struct {
	cluster *fakeCluster
	random  *rand.Rand
	// stale is the endpoint of a Pod that is gone, and restored when a rival last put it back.
	stale    discoveryv1.Endpoint
	restored time.Time
}

// edit makes one edit of a random kind, if there is a slice.
func (r *rivals) edit() {
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	names := slices.Sorted(maps.Keys(r.cluster.slices))
	if len(names) == 0 {
		return
	}
	slice := r.cluster.slices[names[r.random.IntN(len(names))]].DeepCopy()
	switch r.random.IntN(12) {
	case 0, 1, 2, 3:
		slice.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "one"}}
		if !hasAddress(slice, r.stale.Addresses[0]) {
			slice.Endpoints = append(slice.Endpoints, *r.stale.DeepCopy())
			r.restored = time.Now()
		}
	case 4, 5, 6:
		slice.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "two"}}
		for i := range slice.Endpoints {
			slice.Endpoints[i].Zone = nil
		}
	case 7, 8:
		slice.Labels["team"] = "two"
	case 9, 10:
		for i := range slice.Ports {
			port := int32(99)
			slice.Ports[i].Port = &port
		}
	default:
		r.cluster.remove(slice.Name)
		return
	}
	r.cluster.store(slice)
}

func hasAddress(slice *discoveryv1.EndpointSlice, address string) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Addresses[0] == address })
}

// Two other controllers fight about endpoints, ports, zones and labels at once, and delete slices,
// while writes and events are slow. What one of them puts back is gone within the second of a
// reaction and two writes. In the end all is right.
func TestRun_TwoRivalsAtOnceKeepNoRemovedPod(t *testing.T) {
	t.Parallel()
	const atMost = 2500 * time.Millisecond
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			controller, cluster, _ := startWith(t, 130)
			var r *rivals
			for _, slice := range cluster.slices {
				r = &rivals{cluster: cluster, random: random, stale: *slice.Endpoints[0].DeepCopy()}
			}
			cluster.setLatency(time.Duration(random.IntN(300)) * time.Millisecond)
			cluster.setLag(time.Duration(random.IntN(200)) * time.Millisecond)
			controller.DeletePod(slicetest.Pod(r.stale.TargetRef.Name, r.stale.Addresses[0], labelledApp("web")))
			advance(atMost)
			for range 600 {
				if random.IntN(8) == 0 {
					r.edit()
				}
				advance(100 * time.Millisecond)
				if age := time.Since(r.restored); age > atMost && publishes(cluster, r.stale.Addresses[0]) {
					t.Fatalf("seed %d: %s is still there %v after a rival last put it back", seed, r.stale.Addresses[0], age)
				}
			}
			advance(2 * time.Minute)
			if all := cluster.endpoints(t); len(all) != 129 || all["web "+r.stale.Addresses[0]] {
				t.Errorf("seed %d: %d endpoints after the rivals stopped, want 129: %s", seed, len(all),
					strings.Join(slices.Sorted(maps.Values(cluster.contents())), ", "))
			}
		})
	}
}

func publishes(cluster *fakeCluster, address string) bool {
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	for _, slice := range cluster.slices {
		if hasAddress(slice, address) {
			return true
		}
	}
	return false
}
