package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	sharedHolders = 300 // holders of one agent
	singleHolders = 20  // holders with an agent of their own
)

// Replicas join, stop and lose their sessions. No holder expires, no Lease lapses, and each write
// of a Lease has the term of its shard.
func TestRun_HoldersSurviveTheirReplicas(t *testing.T) {
	kube := testkit.Kube(t)
	namespace := testkit.Namespace(t, kube)
	holders := addNodes(t, kube, namespace)
	history, writes := watchLeases(t, kube, namespace), &writeLog{epochs: map[string]int64{}}
	first, second := startReplica(t, namespace, "replica-a", writes), startReplica(t, namespace, "replica-b", writes)
	f := &fixture{t: t, replicas: []*replica{first, second}, history: history}
	f.start(holders)
	f.settle("at the start")

	f.replicas = append(f.replicas, startReplica(t, namespace, "replica-c", writes))
	f.settle("after a join")

	f.replicas = slices.DeleteFunc(f.replicas, func(r *replica) bool { return r == second })
	second.stop()
	f.settle("after an orderly stop")

	id, _, alive := first.candidate.Session()
	if _, err := testkit.Etcd(t).Revoke(t.Context(), id); err != nil || !alive {
		t.Fatalf("revoke the session of %s: alive %t, error %v", first.address, alive, err)
	}
	f.settle("after the loss of a session")

	history.check(t, len(holders))
	writes.mu.Lock()
	defer writes.mu.Unlock()
	t.Logf("%d writes", writes.count)
	for _, problem := range writes.problems {
		t.Error(problem)
	}
}

// addNodes creates Nodes and returns their holders.
func addNodes(t *testing.T, kube kubernetes.Interface, prefix string) []agent.Holder {
	t.Helper()
	var holders []agent.Holder
	for i := range sharedHolders + singleHolders {
		h := node(fmt.Sprintf("%s-%d", prefix, i))
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name, Labels: map[string]string{"test": prefix}}}
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		holders = append(holders, h)
	}
	t.Cleanup(func() {
		err := kube.CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "test=" + prefix})
		if err != nil {
			t.Error(err)
		}
	})
	return holders
}

// fixture is agents and the replicas to which they beat.
type fixture struct {
	t        *testing.T
	replicas []*replica
	history  *leaseHistory
	agents   []*agent.Agent
}

func (f *fixture) start(holders []agent.Holder) {
	cfg := agent.Config{Dial: dialLoopback, MaxBackoff: time.Second, Logger: slog.New(slog.DiscardHandler)}
	for _, r := range f.replicas {
		cfg.Targets = append(cfg.Targets, r.address)
	}
	cfg.Holders = holders[:sharedHolders]
	f.agents = append(f.agents, run(f.t, cfg))
	for i := sharedHolders; i < len(holders); i++ {
		cfg.Holders = holders[i : i+1]
		f.agents = append(f.agents, run(f.t, cfg))
	}
}

// settle waits until each replica holds shards and each holder is registered and its Lease renewed.
// No holder may expire meanwhile.
func (f *fixture) settle(when string) {
	f.t.Helper()
	begin := time.Now()
	for _, check := range []func() error{f.shardsAreShared, f.allAreRegistered, func() error { return f.history.renewedSince(begin) }} {
		testkit.Eventually(f.t, 30*time.Second, func() error {
			for _, r := range f.replicas {
				if n := r.service.Counts()["expired"]; n > 0 {
					f.t.Fatalf("%s: %d holders expired at %s", when, n, r.address)
				}
			}
			return check()
		})
	}
	f.t.Logf("%s, %v: settled after %v", when, begin.UTC(), time.Since(begin).Round(time.Millisecond))
}

// shardsAreShared requires that each replica holds a shard. Rendezvous hashing may distribute them
// unevenly.
func (f *fixture) shardsAreShared() error {
	total := 0
	for _, r := range f.replicas {
		n := r.holds()
		if total += n; n == 0 {
			return fmt.Errorf("%s holds no shard", r.address)
		}
	}
	if total != shards {
		return fmt.Errorf("%d of %d shards are held", total, shards)
	}
	return nil
}

func (f *fixture) allAreRegistered() error {
	registered, alive := 0, int64(0)
	for _, a := range f.agents {
		registered += a.Status().Registered
	}
	for _, r := range f.replicas {
		alive += r.service.Counts()["alive"]
	}
	if want := sharedHolders + singleHolders; registered != want || alive != int64(want) {
		return fmt.Errorf("%d registered and %d alive, want %d", registered, alive, want)
	}
	return nil
}

// leaseHistory is what a watch has shown of the Leases of a namespace.
type leaseHistory struct {
	mu       sync.Mutex // guards the fields below
	uids     map[string]types.UID
	renewed  map[string]time.Time
	longest  gap
	problems []error
}

// gap is the time between two renewTimes of one Lease.
type gap struct {
	lease string
	from  time.Time
	time  time.Duration
}

// watchLeases watches the Leases until the end of the test. It resumes when the kube-apiserver ends
// the watch.
func watchLeases(t *testing.T, kube kubernetes.Interface, namespace string) *leaseHistory {
	t.Helper()
	h := &leaseHistory{uids: map[string]types.UID{}, renewed: map[string]time.Time{}}
	leases := kube.CoordinationV1().Leases(namespace)
	list, err := leases.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changes, err := watchtools.NewRetryWatcherWithContext(t.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return leases.Watch(ctx, options)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range changes.ResultChan() {
			h.add(event)
		}
	}()
	t.Cleanup(func() {
		changes.Stop()
		<-done
	})
	return h
}

func (h *leaseHistory) add(event watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lease, ok := event.Object.(*coordinationv1.Lease)
	if !ok || event.Type == watch.Deleted {
		h.problems = append(h.problems, fmt.Errorf("unexpected event %v", event))
		return
	}
	last, known := h.renewed[lease.Name]
	now := lease.Spec.RenewTime.Time
	switch {
	case known && h.uids[lease.Name] != lease.UID:
		h.problems = append(h.problems, fmt.Errorf("lease %s was created again", lease.Name))
	case known && !now.After(last):
		h.problems = append(h.problems, fmt.Errorf("renewTime of %s went from %v to %v", lease.Name, last, now))
	case known && now.Sub(last) > h.longest.time:
		h.longest = gap{lease: lease.Name, from: last, time: now.Sub(last)}
	}
	h.uids[lease.Name], h.renewed[lease.Name] = lease.UID, now
}

func (h *leaseHistory) renewedSince(moment time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, renewed := range h.renewed {
		if renewed.After(moment) {
			n++
		}
	}
	if n != sharedHolders+singleHolders {
		return fmt.Errorf("%d of %d leases renewed", n, sharedHolders+singleHolders)
	}
	return nil
}

func (h *leaseHistory) check(t *testing.T, holders int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := errors.Join(h.problems...); err != nil || len(h.uids) != holders {
		t.Errorf("%d leases, want %d: %v", len(h.uids), holders, err)
	}
	t.Logf("longest time between two renewals: %v for %s from %v", h.longest.time, h.longest.lease, h.longest.from)
	if h.longest.time > leaseDuration {
		t.Errorf("a lease was not renewed for %v; it lapses after %v", h.longest.time, leaseDuration)
	}
}
