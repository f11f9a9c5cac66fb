package damage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/test/faults/damage/internal/custody"
)

// witness watches every change to Services, IPAddresses and NodePorts in etcd and tells the judge.
type witness struct {
	etcd      *clientv3.Client
	end       context.CancelFunc
	following sync.WaitGroup

	mu     sync.Mutex // guards what follows
	judge  *custody.Judge
	ports  bitmap
	seen   int64
	excuse map[string]int // events to come that a test has made on purpose
	err    error
}

// watchEtcd begins with what is there, which breaks no rule, whatever it is.
func watchEtcd(t *testing.T) *witness {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	w := &witness{etcd: testkit.Etcd(t), end: end, judge: custody.NewJudge(), excuse: map[string]int{}}
	first, err := w.etcd.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil {
		t.Fatal(err)
	}
	w.seen = first.Header.Revision
	// Allocations first: else those who use them would seem to have taken what is not theirs.
	for _, prefix := range []string{addressesPrefix, portsKey, servicesPrefix} {
		found, err := w.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(w.seen))
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range found.Kvs {
			w.see(&clientv3.Event{Type: mvccpb.Event_PUT, Kv: kv}, true)
		}
	}
	w.following.Go(func() { w.follow(ctx) })
	t.Cleanup(func() {
		w.end()
		w.following.Wait()
	})
	return w
}

func (w *witness) follow(ctx context.Context) {
	events := w.etcd.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(w.seen+1), clientv3.WithProgressNotify())
	for answer := range events {
		w.mu.Lock()
		if err := answer.Err(); err != nil && ctx.Err() == nil {
			w.err = err
		}
		for _, event := range answer.Events {
			w.see(event, false)
		}
		w.seen = max(w.seen, answer.Header.Revision)
		w.mu.Unlock()
	}
}

// see wants the lock, but for the first events, which nobody else can see yet.
func (w *witness) see(event *clientv3.Event, planted bool) {
	key, gone := string(event.Kv.Key), event.Type == mvccpb.Event_DELETE
	e := custody.Event{Revision: event.Kv.ModRevision, Planted: planted}
	switch {
	case strings.HasPrefix(key, addressesPrefix):
		e.Subject = strings.TrimPrefix(key, addressesPrefix)
		if e.Kind = custody.Allocate; gone {
			e.Kind = custody.Free
		}
		w.tell(e)
	case strings.HasPrefix(key, servicesPrefix):
		e.Kind, e.Service, e.Gone = custody.Use, strings.TrimPrefix(key, servicesPrefix), gone
		if !gone {
			service, err := decode[*corev1.Service](event.Kv.Value)
			if err != nil {
				w.err = fmt.Errorf("%s: %w", key, err)
				return
			}
			e.Subjects = subjectsOf(service)
		}
		w.tell(e)
	case key == portsKey && !gone:
		w.seePorts(event.Kv, e)
	}
}

func (w *witness) seePorts(kv *mvccpb.KeyValue, e custody.Event) {
	after, err := parseBitmap(kv.Value, kv.ModRevision)
	if err != nil {
		w.err = err
		return
	}
	for port := int32(firstPort); port <= lastPort; port++ {
		before := w.ports.bits != nil && w.ports.has(port)
		if before == after.has(port) {
			continue
		}
		e.Subject = fmt.Sprint(port)
		if e.Kind = custody.Allocate; before {
			e.Kind = custody.Free
		}
		w.tell(e)
	}
	w.ports = after
}

func (w *witness) tell(e custody.Event) {
	excuse := excuseFor(e.Kind, e.Subject+e.Service)
	if w.excuse[excuse] > 0 && !e.Gone {
		w.excuse[excuse]--
		e.Planted = true
	}
	w.judge.See(e)
}

func excuseFor(kind custody.Kind, who string) string { return fmt.Sprintf("%d %s", kind, who) }

// pardon marks the next event of this kind as planted: of a subject, or of a Service ("namespace/name") for a use.
func (w *witness) pardon(kind custody.Kind, who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.excuse[excuseFor(kind, who)]++
}

// caughtUp waits until everything that has happened so far was seen.
func (w *witness) caughtUp(t *testing.T) {
	t.Helper()
	now, err := w.etcd.Put(t.Context(), "/registry/witness", "")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, soon, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err != nil {
			t.Fatalf("the witness: %v", w.err)
		}
		if w.seen < now.Header.Revision {
			return fmt.Errorf("the witness has seen revision %d of %d", w.seen, now.Header.Revision)
		}
		return nil
	})
}

// verdict fails the test for each rule that was broken, but for those that excused names and those that harmed nobody.
func (w *witness) verdict(t *testing.T, excused func(custody.Breach) bool) {
	t.Helper()
	w.caughtUp(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%d allocations, frees and uses judged", w.judge.Events())
	for _, breach := range w.judge.Breaches() {
		// What an update gives up is free a moment too soon, by kube-apiserver's own hand.
		if breach.Yielded == 0 && (excused == nil || !excused(breach)) {
			t.Errorf("%v", breach)
		}
	}
}

// isHeld tells whether a subject is allocated, as far as was seen.
func (w *witness) isHeld(subject string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge.IsHeld(subject)
}

// unused are the subjects that are allocated and that nobody uses, as far as was seen.
func (w *witness) unused() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge.Unused()
}

// yielded tells whether kube-apiserver itself had freed a subject a moment before the Service that used it was written: whoever
// looked just then was right to say that it was used and not allocated.
func (w *witness) yielded(about subject) bool {
	if about.code != bootstrapv1.Finding_CODE_NOT_ALLOCATED {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.judge.Breaches(), func(b custody.Breach) bool {
		return b.Rule == custody.FreedInUse && b.Subject == about.text && b.Yielded > 0
	})
}
