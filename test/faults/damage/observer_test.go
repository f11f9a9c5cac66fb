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
	"github.com/trivet-dev/trivet/test/faults/damage/internal/oracle"
)

// witness watches every change to Services, IPAddresses and NodePorts in etcd and tells the judge.
type observer struct {
	etcd      *clientv3.Client
	end       context.CancelFunc
	following sync.WaitGroup

	mu           sync.Mutex // guards what follows
	oracle       *oracle.Oracle
	ports        bitmap
	lastRevision int64
	injected     map[string]int // events to come that a test has made on purpose
	err          error
}

// watchEtcd begins with what is there, which breaks no rule, whatever it is.
func watchEtcd(t *testing.T) *observer {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	o := &observer{etcd: testkit.Etcd(t), end: end, oracle: oracle.New(), injected: map[string]int{}}
	first, err := o.etcd.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil {
		t.Fatal(err)
	}
	o.lastRevision = first.Header.Revision
	// Allocations first: else those who use them would seem to have taken what is not theirs.
	for _, prefix := range []string{addressesPrefix, portsKey, servicesPrefix} {
		found, err := o.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(o.lastRevision))
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range found.Kvs {
			o.handleEvent(&clientv3.Event{Type: mvccpb.Event_PUT, Kv: kv}, true)
		}
	}
	o.following.Go(func() { o.follow(ctx) })
	t.Cleanup(func() {
		o.end()
		o.following.Wait()
	})
	return o
}

func (o *observer) follow(ctx context.Context) {
	events := o.etcd.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(o.lastRevision+1), clientv3.WithProgressNotify())
	for answer := range events {
		o.mu.Lock()
		if err := answer.Err(); err != nil && ctx.Err() == nil {
			o.err = err
		}
		for _, event := range answer.Events {
			o.handleEvent(event, false)
		}
		o.lastRevision = max(o.lastRevision, answer.Header.Revision)
		o.mu.Unlock()
	}
}

// see wants the lock, but for the first events, which nobody else can see yet.
func (o *observer) handleEvent(event *clientv3.Event, planted bool) {
	key, gone := string(event.Kv.Key), event.Type == mvccpb.Event_DELETE
	e := oracle.Event{Revision: event.Kv.ModRevision, Injected: planted}
	switch {
	case strings.HasPrefix(key, addressesPrefix):
		e.Subject = strings.TrimPrefix(key, addressesPrefix)
		if e.Kind = oracle.Allocate; gone {
			e.Kind = oracle.Free
		}
		o.observe(e)
	case strings.HasPrefix(key, servicesPrefix):
		e.Kind, e.Service, e.Gone = oracle.Use, strings.TrimPrefix(key, servicesPrefix), gone
		if !gone {
			service, err := decode[*corev1.Service](event.Kv.Value)
			if err != nil {
				o.err = fmt.Errorf("%s: %w", key, err)
				return
			}
			e.Subjects = subjectsOf(service)
		}
		o.observe(e)
	case key == portsKey && !gone:
		o.handlePorts(event.Kv, e)
	}
}

func (o *observer) handlePorts(kv *mvccpb.KeyValue, e oracle.Event) {
	after, err := parseBitmap(kv.Value, kv.ModRevision)
	if err != nil {
		o.err = err
		return
	}
	for port := int32(firstPort); port <= lastPort; port++ {
		before := o.ports.bits != nil && o.ports.has(port)
		if before == after.has(port) {
			continue
		}
		e.Subject = fmt.Sprint(port)
		if e.Kind = oracle.Allocate; before {
			e.Kind = oracle.Free
		}
		o.observe(e)
	}
	o.ports = after
}

func (o *observer) observe(e oracle.Event) {
	injected := injectionKey(e.Kind, e.Subject+e.Service)
	if o.injected[injected] > 0 && !e.Gone {
		o.injected[injected]--
		e.Injected = true
	}
	o.oracle.Observe(e)
}

func injectionKey(kind oracle.Kind, who string) string { return fmt.Sprintf("%d %s", kind, who) }

// pardon marks the next event of this kind as planted: of a subject, or of a Service ("namespace/name") for a use.
func (o *observer) markInjected(kind oracle.Kind, who string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.injected[injectionKey(kind, who)]++
}

// caughtUp waits until everything that has happened so far was seen.
func (o *observer) waitUntilCurrent(t *testing.T) {
	t.Helper()
	now, err := o.etcd.Put(t.Context(), "/registry/witness", "")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, waitTimeout, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err != nil {
			t.Fatalf("the witness: %v", o.err)
		}
		if o.lastRevision < now.Header.Revision {
			return fmt.Errorf("the witness has seen revision %d of %d", o.lastRevision, now.Header.Revision)
		}
		return nil
	})
}

// verdict fails the test for each rule that was broken, but for those that excused names and those that harmed nobody.
func (o *observer) checkViolations(t *testing.T, excused func(oracle.Violation) bool) {
	t.Helper()
	o.waitUntilCurrent(t)
	o.mu.Lock()
	defer o.mu.Unlock()
	t.Logf("%d allocations, frees and uses judged", o.oracle.Events())
	for _, violate := range o.oracle.Violations() {
		// What an update gives up is free a moment too soon, by kube-apiserver's own hand.
		if violate.ReleasedAt == 0 && (excused == nil || !excused(violate)) {
			t.Errorf("%v", violate)
		}
	}
}

// isHeld tells whether a subject is allocated, as far as was seen.
func (o *observer) isAllocated(subject string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.oracle.IsAllocated(subject)
}

// unused are the subjects that are allocated and that nobody uses, as far as was seen.
func (o *observer) unused() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.oracle.Unused()
}

// yielded tells whether kube-apiserver itself had freed a subject a moment before the Service that used it was written: whoever
// looked just then was right to say that it was used and not allocated.
func (o *observer) releasedByUpdate(about subject) bool {
	if about.code != bootstrapv1.Finding_CODE_NOT_ALLOCATED {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.oracle.Violations(), func(b oracle.Violation) bool {
		return b.Rule == oracle.FreedInUse && b.Subject == about.text && b.ReleasedAt > 0
	})
}
