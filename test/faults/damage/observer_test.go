package damage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/faults/damage/internal/oracle"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// observer watches all Services, IPAddresses and node ports in etcd and passes each change to the
// oracle.
type observer struct {
	etcd      *clientv3.Client
	end       context.CancelFunc
	following sync.WaitGroup

	mu           sync.Mutex // guards the following fields
	oracle       *oracle.Oracle
	ports        bitmap
	lastRevision int64
	injected     map[string]int // number of injected events to come, by injectionKey
	err          error
}

// watchEtcd starts an observer. The existing state counts as injected, so it violates no rule.
func watchEtcd(t *testing.T) *observer {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	o := &observer{etcd: testkit.Etcd(t), end: end, oracle: oracle.New(), injected: map[string]int{}}
	first, err := o.etcd.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil {
		t.Fatal(err)
	}
	o.lastRevision = first.Header.Revision
	// Allocations come first: otherwise each use would be one without an allocation.
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

// handleEvent requires the lock, except before the watch starts.
func (o *observer) handleEvent(event *clientv3.Event, injected bool) {
	key, gone := string(event.Kv.Key), event.Type == mvccpb.Event_DELETE
	e := oracle.Event{Revision: event.Kv.ModRevision, Injected: injected, Time: time.Now()}
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
			e.Subjects, e.Twice = subjectsOf(service), portsOfTwoProtocols(service)
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

func injectionKey(kind oracle.Kind, name string) string { return fmt.Sprintf("%d %s", kind, name) }

// markInjected marks the next event of a kind as injected. The name is a subject or, for a use, a
// Service ("namespace/name").
func (o *observer) markInjected(kind oracle.Kind, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.injected[injectionKey(kind, name)]++
}

// waitUntilCurrent waits until the observer has handled all events so far.
func (o *observer) waitUntilCurrent(t *testing.T) {
	t.Helper()
	now, err := o.etcd.Put(t.Context(), "/registry/observer-marker", "")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, waitTimeout, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err != nil {
			t.Fatalf("observer: %v", o.err)
		}
		if o.lastRevision < now.Header.Revision {
			return fmt.Errorf("the observer is at revision %d of %d", o.lastRevision, now.Header.Revision)
		}
		return nil
	})
}

// checkViolations fails the test for each violation, except excused ones and those released by an
// update.
func (o *observer) checkViolations(t *testing.T, excused func(oracle.Violation) bool) {
	t.Helper()
	o.waitUntilCurrent(t)
	o.mu.Lock()
	defer o.mu.Unlock()
	t.Logf("%d allocations, frees and uses observed", o.oracle.Events())
	for _, violation := range o.oracle.Violations() {
		// kube-apiserver frees what an update releases just before it writes the Service.
		if violation.ReleasedAt == 0 && (excused == nil || !excused(violation)) {
			t.Errorf("%v; history:\n%s", violation, strings.Join(o.oracle.History(violation.Subject), "\n"))
		}
	}
}

// isAllocated reports whether a subject is allocated.
func (o *observer) isAllocated(subject string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.oracle.IsAllocated(subject)
}

// unused returns the sorted subjects that are allocated and not in use.
func (o *observer) unused() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.oracle.Unused()
}

// longestRequest is the time after which kube-apiserver aborts a request. A finding about an unused
// subject opens later, because the request may be about to use it.
const longestRequest = time.Minute

// checkOpening returns an error unless the recorded history of etcd shows that a finding that the
// test did not inject was true when it opened.
func (o *observer) checkOpening(opened opening) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch opened.about.code {
	case "NOT_ALLOCATED":
		return o.checkWas(opened.about, o.oracle.WasUnallocated)
	case "DUPLICATE_OWNER":
		return o.checkWas(opened.about, o.oracle.WasShared)
	case "LEAKED", "ORPHAN":
		return o.checkLeak(opened)
	default:
		return o.unexplained(opened.about)
	}
}

// checkWas returns an error unless a finding was true at one time. kube-apiserver causes such times
// itself: it frees what an update releases just before it writes the Service. A time with neither
// this cause nor damage is a violation; see checkViolations.
func (o *observer) checkWas(about subject, was func(subject string) bool) error {
	if !was(about.text) {
		return o.unexplained(about)
	}
	return nil
}

func (o *observer) unexplained(about subject) error {
	return fmt.Errorf("a finding that no damage explains was open: %v; history:\n%s", about, strings.Join(o.oracle.History(about.text), "\n"))
}

// checkLeak returns an error unless the subject was unused for longer than any request when the
// finding opened, and the history has the cause.
func (o *observer) checkLeak(opened opening) error {
	unuses := o.oracle.Unuses(opened.about.text)
	if !slices.ContainsFunc(unuses, func(u oracle.Unuse) bool {
		lasts := u.To.IsZero()
		wasLong := u.Cause == oracle.InjectedLeak ||
			opened.time.Sub(u.From) > longestRequest && (lasts || u.To.Sub(u.From) > longestRequest)
		return u.Cause != oracle.NoCause && wasLong && (lasts || u.To.After(opened.firstSeen))
	}) {
		return fmt.Errorf("%v was open at %v, seen since %v, and was not unused for so long, or without a cause: %v",
			opened.about, opened.time, opened.firstSeen, unuses)
	}
	return nil
}

// checkLeaks returns an error while a subject is unused without a cause. At the end of a test no
// request is under way.
func (o *observer) checkLeaks() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, text := range o.oracle.Unused() {
		unuses := o.oracle.Unuses(text)
		if last := unuses[len(unuses)-1]; last.Cause == oracle.NoCause {
			errs = append(errs, errors.New(last.String()))
		}
	}
	return errors.Join(errs...)
}

// kube-apiserver alone violates no rule, so violations in other tests have another cause.
func TestObserver_BaselineRunHasNoViolations(t *testing.T) {
	inj := newInjector(t)
	startChurn(t, inj.kube, testkit.Namespace(t, inj.kube), min(*services, 200)).end(t)
	inj.observer.checkViolations(t, nil)
	if events := inj.observer.oracle.Events(); events < 200 {
		t.Errorf("%d events were observed, want some for each Service", events)
	}
}

// The observer finds harmful changes of addresses and ports in use.
func TestObserver_RecordsViolations(t *testing.T) {
	inj := newInjector(t)
	service := inj.createService(withPorts)
	ip, number := service.Spec.ClusterIP, service.Spec.Ports[0].NodePort
	if err := inj.kube.NetworkingV1().IPAddresses().Delete(t.Context(), ip, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	inj.setPortBit(number, 0)
	inj.observer.waitUntilCurrent(t)
	inj.setPortBit(number, 1)
	inj.allocate(ip, parentOf(service))
	inj.observer.waitUntilCurrent(t)
	got := inj.observer.oracle.Violations()
	want := func(b oracle.Violation) bool {
		return b.Rule == oracle.FreedInUse && b.Subject == ip && b.ReallocatedAt > b.Revision
	}
	// The change of the port is marked as injected.
	if len(got) != 1 || !slices.ContainsFunc(got, want) {
		t.Errorf("violations are %v, want one of %s with a reallocation", got, ip)
	}
}
