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
	"github.com/trivet-dev/trivet/internal/testkit"
)

const (
	together = 300 // holders of one agent
	alone    = 20  // agents of one holder each
)

// Replicas join, leave in good order, and lose their sessions. No holder expires, no Lease lapses for its readers, and nothing
// is written but under the term of the holder's shard.
func TestRun_HoldersOutliveTheirReplicas(t *testing.T) {
	kube := testkit.Kube(t)
	namespace := testkit.Namespace(t, kube)
	holders := addNodes(t, kube, namespace)
	records, ledger := follow(t, kube, namespace), &ledger{epochs: map[string]int64{}}
	first, second := startReplica(t, namespace, "replica-a", ledger), startReplica(t, namespace, "replica-b", ledger)
	f := &fleet{t: t, kube: kube, replicas: []*replica{first, second}, records: records}
	f.start(holders)
	f.settle("at the start")

	f.replicas = append(f.replicas, startReplica(t, namespace, "replica-c", ledger))
	f.settle("after a join")

	f.replicas = slices.DeleteFunc(f.replicas, func(r *replica) bool { return r == second })
	second.stop()
	f.settle("after an orderly stop")

	id, _, alive := first.candidate.Session()
	if _, err := testkit.Etcd(t).Revoke(t.Context(), id); err != nil || !alive {
		t.Fatalf("revoke the session of %s: alive %t, error %v", first.address, alive, err)
	}
	f.settle("after the loss of a session")

	records.check(t, len(holders))
	ledger.mu.Lock()
	defer ledger.mu.Unlock()
	t.Logf("%d writes", ledger.writes)
	for _, wrong := range ledger.wrong {
		t.Error(wrong)
	}
}

// addNodes makes Nodes and returns their holders.
func addNodes(t *testing.T, kube kubernetes.Interface, prefix string) []agent.Holder {
	t.Helper()
	var holders []agent.Holder
	for i := range together + alone {
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

// fleet is the agents and the replicas that they shall be at home with.
type fleet struct {
	t        *testing.T
	kube     kubernetes.Interface
	replicas []*replica
	records  *records
	agents   []*agent.Agent
}

func (f *fleet) start(holders []agent.Holder) {
	cfg := agent.Config{Dial: dialLoopback, MaxBackoff: time.Second, Logger: slog.New(slog.DiscardHandler)}
	for _, r := range f.replicas {
		cfg.Targets = append(cfg.Targets, r.address)
	}
	cfg.Holders = holders[:together]
	f.agents = append(f.agents, run(f.t, cfg))
	for i := together; i < len(holders); i++ {
		cfg.Holders = holders[i : i+1]
		f.agents = append(f.agents, run(f.t, cfg))
	}
}

// settle waits until every replica holds its share of the shards and every holder is welcome and renewed. Meanwhile nobody
// may expire.
func (f *fleet) settle(when string) {
	f.t.Helper()
	begin := time.Now()
	for _, check := range []func() error{f.shardsAreShared, f.allAreWelcome, func() error { return f.records.renewedSince(begin) }} {
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

// shardsAreShared accepts what rendezvous hashing may come to: nobody has much more than the others.
func (f *fleet) shardsAreShared() error {
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

func (f *fleet) allAreWelcome() error {
	welcome, kept := 0, int64(0)
	for _, a := range f.agents {
		welcome += a.Status().Welcome
	}
	for _, r := range f.replicas {
		kept += r.service.Counts()["alive"]
	}
	if want := together + alone; welcome != want || kept != int64(want) {
		return fmt.Errorf("%d welcome and %d alive, want %d", welcome, kept, want)
	}
	return nil
}

// records is what a watch has shown of the Leases of a namespace.
type records struct {
	mu       sync.Mutex // guards what follows
	uids     map[string]types.UID
	renewed  map[string]time.Time
	worst    gap
	problems []error
}

// gap is a time between two renewTimes of one Lease.
type gap struct {
	lease string
	from  time.Time
	long  time.Duration
}

// follow watches the Leases until the end of the test, and goes on where it was when the kube-apiserver ends the watch.
func follow(t *testing.T, kube kubernetes.Interface, namespace string) *records {
	t.Helper()
	r := &records{uids: map[string]types.UID{}, renewed: map[string]time.Time{}}
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
			r.note(event)
		}
	}()
	t.Cleanup(func() {
		changes.Stop()
		<-done
	})
	return r
}

func (r *records) note(event watch.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lease, ok := event.Object.(*coordinationv1.Lease)
	if !ok || event.Type == watch.Deleted {
		r.problems = append(r.problems, fmt.Errorf("unexpected event %v", event))
		return
	}
	last, known := r.renewed[lease.Name]
	now := lease.Spec.RenewTime.Time
	switch {
	case known && r.uids[lease.Name] != lease.UID:
		r.problems = append(r.problems, fmt.Errorf("lease %s was made anew", lease.Name))
	case known && !now.After(last):
		r.problems = append(r.problems, fmt.Errorf("renewTime of %s went from %v to %v", lease.Name, last, now))
	case known && now.Sub(last) > r.worst.long:
		r.worst = gap{lease: lease.Name, from: last, long: now.Sub(last)}
	}
	r.uids[lease.Name], r.renewed[lease.Name] = lease.UID, now
}

func (r *records) renewedSince(moment time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, renewed := range r.renewed {
		if renewed.After(moment) {
			n++
		}
	}
	if n != together+alone {
		return fmt.Errorf("%d of %d leases renewed", n, together+alone)
	}
	return nil
}

func (r *records) check(t *testing.T, holders int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(r.problems...); err != nil || len(r.uids) != holders {
		t.Errorf("%d leases, want %d: %v", len(r.uids), holders, err)
	}
	t.Logf("longest time between two renewals: %v for %s from %v", r.worst.long, r.worst.lease, r.worst.from)
	if r.worst.long > leaseDuration {
		t.Errorf("a lease was not renewed for %v; after %v its readers took the holder for dead", r.worst.long, leaseDuration)
	}
}
