package mirroring

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// historyLimit is small, so that random Endpoints exceed it.
	historyLimit = 6
	// historySteps is the length of a history.
	historySteps = 120
	// convergence is how long the slices may take to become right after a history.
	convergence = 45 * time.Second
	// foreignKey begins the annotations that another writer puts on slices.
	foreignKey = "foreign.example.com/"
	foreignPin = "foreign.example.com/pin"
)

// After a random history of Endpoints, Services and edits of slices by another writer, the slices
// are those that kube-controller-manager makes of the same objects from nothing. What the other
// writer added is still there. Nothing is written at rest.
func TestHistories_EndWithUpstreamsSlices(t *testing.T) {
	sides := startSides(t)
	if len(sides) < 2 {
		t.Skip("needs both sides")
	}
	for _, on := range sides {
		on.start(t, setup{perSubset: historyLimit})
	}
	seed := *arguments.seed
	if seed == 0 {
		seed = uint64(time.Now().UnixMilli())
	}
	rounds := 0
	for end := time.Now().Add(*arguments.history); rounds == 0 || time.Now().Before(end); rounds++ {
		h := &history{t: t, reference: sides[0], tested: sides[1], seed: seed, random: rand.New(rand.NewPCG(seed, 0)), ledger: newLedger()}
		h.run(fmt.Sprintf("history-%d", seed))
		if t.Failed() {
			return
		}
		seed++
	}
	t.Logf("%d histories of %d steps", rounds, historySteps)
}

// history is one random history.
type history struct {
	t         *testing.T
	reference *side
	tested    *side
	seed      uint64
	random    *rand.Rand
	namespace string
	ledger    *ledger
	done      map[string]int // steps by kind
}

func (h *history) ctx() context.Context { return h.t.Context() }

func (h *history) run(namespace string) {
	h.namespace, h.done = namespace, map[string]int{}
	for _, on := range []*side{h.reference, h.tested} {
		if err := on.makeNamespace(h.ctx(), namespace); err != nil {
			h.t.Fatal(err)
		}
	}
	defer h.clear()
	defer func() {
		if h.t.Failed() {
			h.t.Logf("repeat with: cd test/conformance && go test -count=1 -v ./mirroring -run %s -args -manager=%s -history=1s -seed=%d",
				h.t.Name(), *arguments.manager, h.seed)
		}
	}()
	begun := time.Now()
	restart := h.random.IntN(3 * historySteps) // within the history, one time in three
	for i := range historySteps {
		if i == restart {
			h.tested.stop()
			h.tested.start(h.t, setup{perSubset: historyLimit})
		}
		h.step()
		time.Sleep(time.Duration(h.random.IntN(20)) * time.Millisecond)
	}
	h.unpin()
	h.copyToReference()
	h.await(begun)

	// At rest nothing is written, and what a mirror does not depend on is no reason to write.
	rest := time.Now()
	h.touch()
	h.tested.awaitController(h.t, namespace)
	time.Sleep(restTime)
	if writes := h.writes(h.tested, rest); writes != "" {
		h.t.Errorf("seed %d: at rest: %s", h.seed, writes)
	}
	if writes := h.writes(h.tested, begun); strings.Contains(writes, "without a change") {
		h.t.Errorf("seed %d: %s", h.seed, writes)
	}
	h.t.Logf("seed %d: %v; writes: %s", h.seed, h.done, h.writes(h.tested, begun))
}

func (h *history) writes(on *side, since time.Time) string {
	writes, err := on.audit.in(h.namespace, since)
	if err != nil {
		h.t.Fatal(err)
	}
	return summary(writes)
}

// await waits until the slices are right.
func (h *history) await(begun time.Time) {
	var problems []string
	for end := time.Now().Add(convergence); ; {
		h.reference.awaitController(h.t, h.namespace)
		h.tested.awaitController(h.t, h.namespace)
		if time.Sleep(restTime); h.atRest() {
			if problems = h.problems(); len(problems) == 0 {
				return
			}
		}
		if time.Now().After(end) {
			break
		}
	}
	h.t.Errorf("seed %d: writes: %s:\n%s", h.seed, h.writes(h.tested, begun), strings.Join(problems, "\n"))
}

func (h *history) atRest() bool {
	for _, on := range []*side{h.reference, h.tested} {
		if writes, err := on.audit.in(h.namespace, time.Now().Add(-restTime)); err != nil || len(writes) > 0 {
			return false
		}
	}
	return true
}

// problems compares the slices of both sides.
func (h *history) problems() []string {
	want, err := h.reference.snapshot(h.ctx(), h.namespace)
	if err != nil {
		return []string{err.Error()}
	}
	got, err := h.tested.snapshot(h.ctx(), h.namespace)
	if err != nil {
		return []string{err.Error()}
	}
	return check(want, got, h.ledger)
}

// unpin removes the finalizers of the slices that wait for it, so that they go.
func (h *history) unpin() {
	h.eachSlice(func(slice *discoveryv1.EndpointSlice) bool {
		return slice.DeletionTimestamp != nil && len(slice.Finalizers) > 0
	})
}

func (h *history) eachSlice(pinned func(*discoveryv1.EndpointSlice) bool) {
	client := h.tested.kube.DiscoveryV1().EndpointSlices(h.namespace)
	list, err := client.List(h.ctx(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range list.Items {
		if !pinned(&list.Items[i]) {
			continue
		}
		_, err := client.Patch(h.ctx(), list.Items[i].Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			h.t.Fatal(err)
		}
	}
}

// copyToReference makes the objects of the tested side on the other side, where none was before.
func (h *history) copyToReference() {
	services, err := h.tested.kube.CoreV1().Services(h.namespace).List(h.ctx(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, found := range services.Items {
		made := service(found.Name)
		made.Spec.Selector = found.Spec.Selector
		if _, err := h.reference.kube.CoreV1().Services(h.namespace).Create(h.ctx(), made, metav1.CreateOptions{}); err != nil {
			h.t.Fatal(err)
		}
	}
	endpoints, err := h.tested.kube.CoreV1().Endpoints(h.namespace).List(h.ctx(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, found := range endpoints.Items {
		made := endpointsOf(found.Name, found.Subsets...)
		made.Labels, made.Annotations = found.Labels, found.Annotations
		if _, err := h.reference.kube.CoreV1().Endpoints(h.namespace).Create(h.ctx(), made, metav1.CreateOptions{}); err != nil {
			h.t.Fatal(err)
		}
	}
}

// touch changes what no mirror depends on.
func (h *history) touch() {
	client := h.tested.kube.CoreV1().Endpoints(h.namespace)
	list, err := client.List(h.ctx(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range list.Items {
		_, err := client.Patch(h.ctx(), e.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"2026-01-01T00:00:00Z"}}}`, corev1.EndpointsLastChangeTriggerTime), metav1.PatchOptions{})
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *history) clear() {
	for _, on := range []*side{h.reference, h.tested} {
		if err := on.kube.CoreV1().Endpoints(h.namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			h.t.Error(err)
		}
	}
	h.eachSlice(func(slice *discoveryv1.EndpointSlice) bool { return len(slice.Finalizers) > 0 })
}
