package eviction_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// model is what really happens on one Node: when taints and Pods came. Every clock in it is right
// to ClockTolerance.
type model struct {
	r      *rand.Rand
	now    monotonic.Instant
	taints map[string]monotonic.Instant
	stated map[string]time.Time // timeAdded, of those that have one
	pods   map[string]monotonic.Instant
	specs  map[string]*corev1.Pod
	sick   map[string]monotonic.Instant // when pods are due for node health
	made   int
}

func keys() []string {
	return []string{"a", "b", corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}
}

// stamp is the time by a clock that is slightly wrong, truncated to seconds as in the API.
func (m *model) stamp() time.Time {
	wrong := time.Duration(m.r.Int64N(int64(2*eviction.ClockTolerance-2*time.Second))) - eviction.ClockTolerance + time.Second
	return wall(m.now).Add(wrong).Truncate(time.Second)
}

func (m *model) step() {
	m.now = m.now.Add(time.Duration(m.r.Int64N(int64(20 * time.Second))))
	key := keys()[m.r.IntN(4)]
	_, tainted := m.taints[key]
	switch roll := m.r.IntN(4); {
	case roll == 0 && !tainted:
		m.taints[key] = m.now
		if m.r.IntN(2) == 0 {
			m.stated[key] = m.stamp()
		}
	case roll == 0:
		delete(m.taints, key)
		delete(m.stated, key)
	case roll == 1:
		m.add()
	case roll == 2 && len(m.pods) > 4:
		for name := range m.pods {
			delete(m.pods, name)
			break
		}
	}
}

func (m *model) add() {
	m.made++
	name := fmt.Sprintf("p%d", m.made)
	var tolerations []corev1.Toleration
	for _, key := range keys() {
		switch m.r.IntN(3) {
		case 0:
			tolerations = append(tolerations, tolerates(key))
		case 1:
			tolerations = append(tolerations, tolerates(key, m.r.Int64N(100)))
		}
	}
	pod := newPod(name, tolerations...)
	if m.r.IntN(2) == 0 {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(m.stamp()),
		}}
	}
	m.pods[name], m.specs[name] = m.now, pod
}

func (m *model) node() *corev1.Node {
	node := newNode()
	for _, key := range keys() {
		if _, tainted := m.taints[key]; !tainted {
			continue
		}
		taint := noExecute(key)
		if at, stated := m.stated[key]; stated {
			taint.TimeAdded = &metav1.Time{Time: at}
		}
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return node
}

// list returns the Pods in random order, as caches do.
func (m *model) list() []*corev1.Pod {
	var all []*corev1.Pod
	for name := range m.pods {
		all = append(all, m.specs[name])
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int { return m.r.IntN(3) - 1 })
	return all
}

func fromHealth(key string) bool {
	return key == corev1.TaintNodeNotReady || key == corev1.TaintNodeUnreachable
}

// due is when the toleration of a Pod is over; never if it has no end.
func (m *model) due(pod *corev1.Pod, key string) (due monotonic.Instant, ever bool) {
	since := max(m.taints[key], m.pods[pod.Name])
	i := slices.IndexFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == key })
	if i < 0 {
		return since, true
	}
	if seconds := pod.Spec.Tolerations[i].TolerationSeconds; seconds != nil {
		return since.Add(time.Duration(*seconds) * time.Second), true
	}
	return 0, false
}

// suffer notes when Pods are due for node health, which never becomes later while they are pending.
func (m *model) suffer() {
	for name := range m.pods {
		first, waits := m.sick[name]
		still := false
		for key := range m.taints {
			if due, ever := m.due(m.specs[name], key); ever && fromHealth(key) {
				still = true
				if !waits || due < first {
					first, waits = due, true
				}
			}
		}
		if delete(m.sick, name); still {
			m.sick[name] = first
		}
	}
}

// endured returns whether a toleration of a Pod is over.
func (m *model) endured(pod *corev1.Pod) bool {
	if first, waits := m.sick[pod.Name]; waits && m.now >= first {
		return true
	}
	for key := range m.taints {
		if due, ever := m.due(pod, key); ever && m.now >= due {
			return true
		}
	}
	return false
}

func (m *model) toleratesAll(pod *corev1.Pod) bool {
	for key := range m.taints {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == key && t.TolerationSeconds == nil }) {
			return false
		}
	}
	return true
}

// After any events and changes of the term: no Pod leaves early, no Pod that tolerates all taints
// leaves, equal inputs give equal plans, and a Pod that must leave leaves in the end.
func TestProperty_NoPodLeavesEarlyOrStaysForever(t *testing.T) {
	for seed := range uint64(300) {
		m := &model{
			r: rand.New(rand.NewPCG(seed, 7)), now: 1000 * seconds, taints: map[string]monotonic.Instant{}, stated: map[string]time.Time{},
			pods: map[string]monotonic.Instant{}, specs: map[string]*corev1.Pod{}, sick: map[string]monotonic.Instant{},
		}
		var w eviction.NodeEvictions
		for range 200 {
			m.step()
			m.suffer()
			if m.r.IntN(30) == 0 {
				w = eviction.NodeEvictions{} // another replica takes over
			}
			before := w
			w = before.Observe(m.now, wall(m.now), m.node(), m.list())
			if again := before.Observe(m.now, wall(m.now), m.node(), m.list()); !cmp.Equal(dues(w), dues(again)) {
				t.Fatalf("seed %d: equal observations differ: %v, %v", seed, dues(w), dues(again))
			}
			for _, e := range (eviction.Rules{}).Plan(m.now, eviction.State{Nodes: map[string]eviction.NodeEvictions{"n": w}}, 1000).Evictions {
				if !m.endured(e.Pod) || m.toleratesAll(e.Pod) {
					t.Fatalf("seed %d: %s is evicted early at %v for %v since %v: on the node since %v, tolerations %v, taints %v", seed, e.Pod.Name, m.now.Sub(0), e.Taint.Key,
						e.Since.Sub(0), m.pods[e.Pod.Name].Sub(0), e.Pod.Spec.Tolerations, m.taints)
				}
				delete(m.pods, e.Pod.Name)
			}
		}
		// Nothing changes any more, so after the longest toleration all Pods that must leave have
		// left.
		w = w.Observe(m.now, wall(m.now), m.node(), m.list())
		m.now = m.now.Add(200 * time.Second)
		w = w.Observe(m.now, wall(m.now), m.node(), m.list())
		plan := eviction.Rules{}.Plan(m.now, eviction.State{Nodes: map[string]eviction.NodeEvictions{"n": w}, Paused: map[types.UID]monotonic.Instant{}}, 1000)
		left := names(plan)
		for name, pod := range m.specs {
			if _, here := m.pods[name]; here && m.toleratesAll(pod) == slices.Contains(left, name) {
				t.Fatalf("seed %d: %s tolerates all taints: %v, is evicted in the end: %v", seed, name, m.toleratesAll(pod), !m.toleratesAll(pod))
			}
		}
	}
}
