package slicecontroller

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// A worker finds a Service deleted and forgets it. Meanwhile the Service was created again.
func TestForget_RecreatedServiceKeepsItsSync(t *testing.T) {
	t.Parallel()
	controller, err := New(Config{ManagedBy: slicetest.ManagedBy, Shards: 1, MaxEndpointsPerSlice: 100, Workers: 1}, Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	queue := controller.shards.openQueue() // without workers
	defer queue.ShutDown()
	owned := newOwnedShard(t.Context(), 0, nil)
	if err := controller.shards.acquire(owned); err != nil {
		t.Fatal(err)
	}
	owned.markCaughtUp()
	service := slicetest.Service("web")
	key := keyOf(service.Namespace, service.Name)
	controller.PutService(service)
	controller.forget(key, ErrServiceNotFound)
	if _, _, ok := owned.startSync(key, service, newCompactionBudget(), time.Now()); !ok {
		t.Error("a recreated Service has no sync due")
	}
	controller.DeleteService(service)
	controller.forget(key, ErrServiceNotFound)
	if len(owned.records) != 0 {
		t.Errorf("%d records of a deleted Service are kept", len(owned.records))
	}
}

// While urgent Services come all the time, Pop never reaches the stale entries of lower priorities.
func TestPriorityQueue_StaleEntriesAreBounded(t *testing.T) {
	t.Parallel()
	q := newPriorityQueue()
	for i := range 100_000 {
		key := keyOf("shop", fmt.Sprint("svc-", i%10))
		q.Push(key)
		q.raise(key, priorityOf(index.Urgent))
		q.Touch(key)
		if got := q.Pop(); got != key {
			t.Fatalf("%v is first, want %v", got, key)
		}
	}
	for priority, keys := range q.keys {
		if keys.size > 1000 || len(keys.entries) > 1 {
			t.Errorf("priority %d has %d entries, and no Service waits", priority, keys.size)
		}
	}
	if got := q.Len(); got != 0 {
		t.Errorf("%d Services wait", got)
	}
}

func TestPriorityQueue_RemovingStaleEntriesKeepsTheOrder(t *testing.T) {
	t.Parallel()
	q := newPriorityQueue()
	const services = 300
	for i := range services {
		q.Push(keyOf("shop", fmt.Sprint("svc-", i)))
	}
	raised := keyOf("shop", "raised")
	for range 10 * services {
		q.Push(raised)
		q.raise(raised, requested)
		q.Touch(raised)
		if got := q.Pop(); got != raised {
			t.Fatalf("%v is first, want %v", got, raised)
		}
	}
	for i := range services {
		if got, want := q.Pop(), keyOf("shop", fmt.Sprint("svc-", i)); got != want {
			t.Fatalf("%v is next, want %v", got, want)
		}
	}
	if got := q.Len(); got != 0 {
		t.Errorf("%d Services wait", got)
	}
}

// A tenant whose Services all change at once delays a Service of another namespace by one sync.
func TestPriorityQueue_NamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	q := newPriorityQueue()
	const hostile = 1000
	for i := range hostile {
		q.Push(keyOf("hostile", fmt.Sprint("svc-", i)))
	}
	for i := range 3 {
		q.Push(keyOf("shop", fmt.Sprint("svc-", i)))
		q.Push(keyOf("bank", fmt.Sprint("svc-", i)))
	}
	var order []string
	for range 9 {
		order = append(order, q.Pop().String())
	}
	want := []string{
		"hostile/svc-0", "shop/svc-0", "bank/svc-0", "hostile/svc-1", "shop/svc-1", "bank/svc-1", "hostile/svc-2", "shop/svc-2", "bank/svc-2",
	}
	if diff := gocmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for i := 3; i < hostile; i++ {
		if got, want := q.Pop(), keyOf("hostile", fmt.Sprint("svc-", i)); got != want {
			t.Fatalf("%v is next, want %v", got, want)
		}
	}
	for at, keys := range q.keys {
		if keys.size != 0 || len(keys.entries) != 0 || len(keys.namespaces) != 0 {
			t.Errorf("priority %d keeps %v", at, keys)
		}
	}
}

// The entries that remain of Services with a higher priority since take no turn of their namespace.
func TestPriorityQueue_StaleEntriesTakeNoTurn(t *testing.T) {
	t.Parallel()
	q := newPriorityQueue()
	for i := range 50 {
		q.Push(keyOf("shop", fmt.Sprint("raised-", i)))
	}
	q.Push(keyOf("shop", "waits"))
	for i := range 1000 {
		q.Push(keyOf("hostile", fmt.Sprint("svc-", i)))
	}
	for i := range 50 {
		key := keyOf("shop", fmt.Sprint("raised-", i))
		q.raise(key, priorityOf(index.Urgent))
		q.Touch(key)
		if got := q.Pop(); got != key {
			t.Fatalf("%v is next, want the urgent %v", got, key)
		}
	}
	for i := 1; q.Pop() != keyOf("shop", "waits"); i++ {
		if i == 2 {
			t.Fatal("a Service waits for more than one of another namespace")
		}
	}
}

func TestCompactionBudget_BoundsWritesAndServesAll(t *testing.T) {
	t.Parallel()
	const services, seconds = 1000, 60
	b := newCompactionBudget()
	start := testEpoch()
	next := make([]time.Time, services) // when each asks again; each compacts once, with two writes
	for i := range next {
		next[i] = start
	}
	writes, requests := 0, 0
	for now := start; now.Before(start.Add(seconds * time.Second)); now = now.Add(10 * time.Millisecond) {
		for i := range next {
			if next[i].IsZero() || next[i].After(now) {
				continue
			}
			requests++
			granted, wait := b.take(now, compactionWrites)
			if granted == 0 {
				next[i] = now.Add(wait)
				continue
			}
			writes += minCompactionWrites
			b.finish(granted - minCompactionWrites)
			next[i] = time.Time{}
		}
	}
	if most := compactionBurst + seconds*compactionRate; writes > most || writes < most*9/10 {
		t.Errorf("%d writes in %d s, want up to %d and not many less", writes, seconds, most)
	}
	if requests > 4*services {
		t.Errorf("%d Services asked %d times", services, requests)
	}
}

func TestCompactionBudget_WaitIsLongEnough(t *testing.T) {
	t.Parallel()
	b := newCompactionBudget()
	now := testEpoch()
	for range compactionBurst / compactionWrites {
		if granted, wait := b.take(now, compactionWrites); granted != compactionWrites || wait != 0 {
			t.Fatalf("granted %d after %v, want %d", granted, wait, compactionWrites)
		}
		if granted, wait := b.take(now, compactionWrites); granted != 0 || wait < compactionTurn {
			t.Fatalf("granted %d after %v during another compaction, want none", granted, wait)
		}
		b.finish(0)
	}
	granted, wait := b.take(now, compactionWrites)
	if granted != 0 || wait <= 0 || wait > time.Second {
		t.Fatalf("granted %d after %v, want none for less than a second", granted, wait)
	}
	if granted, _ := b.take(now.Add(wait), compactionWrites); granted < minCompactionGrant {
		t.Errorf("granted %d then, want at least %d", granted, minCompactionGrant)
	}
}

func testEpoch() time.Time { return time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC) }
