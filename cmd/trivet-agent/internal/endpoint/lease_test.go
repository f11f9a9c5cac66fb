package endpoint

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/leasewrite"
)

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

// writer writes the Lease of the node as a kubelet does: it sends what it last got, with a new
// time.
type writer struct {
	*fixture
	client    *http.Client
	mediaType string
	seconds   int32 // the duration of the Lease
	held      *coordinationv1.Lease
	last      time.Time
}

// newWriter creates the Lease through the endpoint.
func newWriter(f *fixture, mediaType string) *writer {
	f.t.Helper()
	return newWriterOf(f, mediaType, 40)
}

func newWriterOf(f *fixture, mediaType string, seconds int32) *writer {
	f.t.Helper()
	w := &writer{fixture: f, client: f.kubelet(), mediaType: mediaType, seconds: seconds}
	w.create()
	return w
}

func (w *writer) create() {
	w.t.Helper()
	w.held = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: "kube-node-lease", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "node-uid"}}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(node), LeaseDurationSeconds: new(w.seconds), RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}
	if code := w.send(http.MethodPost, leasesPath); code != http.StatusOK {
		w.t.Fatalf("create: %d", code)
	}
}

// renew writes, and returns the code of the answer.
func (w *writer) renew() int {
	w.t.Helper()
	w.last = time.Now().Truncate(time.Microsecond)
	w.held.Spec.RenewTime = &metav1.MicroTime{Time: w.last}
	return w.send(http.MethodPut, leasesPath+"/"+node+"?timeout=10s")
}

func (w *writer) mustRenew() {
	w.t.Helper()
	if code := w.renew(); code != http.StatusOK {
		w.t.Fatalf("renew: %d", code)
	}
	if !w.held.Spec.RenewTime.Time.Equal(w.last) {
		w.t.Errorf("the answer has renewTime %v, want %v", w.held.Spec.RenewTime, w.last)
	}
}

func (w *writer) send(method, path string) int {
	w.t.Helper()
	body, err := leasewrite.EncodeLease(w.mediaType, w.held)
	if err != nil {
		w.t.Fatal(err)
	}
	response, text := w.do(w.client, method, path, bytes.NewReader(body), "Content-Type", w.mediaType, "Accept", w.mediaType+",application/json")
	if response.StatusCode == http.StatusOK {
		if w.held, err = leasewrite.DecodeLease(response.Header.Get("Content-Type"), []byte(text)); err != nil {
			w.t.Fatal(err)
		}
	}
	return response.StatusCode
}

// expectWrites checks how many writes kube-apiserver got since the last call, and that none of them
// met a conflict that the kubelet saw.
func (w *writer) expectWrites(since int, want int) int {
	w.t.Helper()
	now := w.leases.Count(http.MethodPut)
	if got := now - since - w.leases.Conflicts(); got != want {
		w.t.Errorf("%d writes at kube-apiserver, want %d", got, want)
	}
	return now
}

func TestLease_RenewalsBecomeBeatsAndNoWrites(t *testing.T) {
	t.Parallel()
	for _, mediaType := range []string{leasewrite.JSON, leasewrite.Protobuf} {
		f := newFixture(t, nil)
		w := newWriter(f, mediaType)
		created := f.leases.Get(node)
		for i := range 5 {
			w.mustRenew()
			if got := f.leasesvc.count(); got != i+1 {
				t.Errorf("%d heartbeats after %d writes", got, i+1)
			}
			if w.held.UID != created.UID || len(w.held.OwnerReferences) != 1 || w.held.ResourceVersion != created.ResourceVersion {
				t.Errorf("the answer is %v, want the Lease %v", w.held, created)
			}
		}
		w.expectWrites(0, 0)
		if n := f.leases.Count(http.MethodGet); n != 1 {
			t.Errorf("%d reads, want 1", n)
		}
	}
}

func TestLease_NoBeatWithoutAWrite(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	w.mustRenew()
	f.code(w.client, http.MethodGet, leasesPath+"/"+node)
	f.code(w.client, http.MethodGet, "/api/v1/nodes/"+node)
	if code := f.code(w.client, http.MethodPut, leasesPath+"/node-2", "Content-Type", leasewrite.JSON); code == http.StatusOK {
		t.Error("a write of another node's Lease was answered")
	}
	if got := f.leasesvc.count(); got != 1 {
		t.Errorf("%d heartbeats after one write", got)
	}
}

// leasesvc writes the real Lease from time to time, so that the version that the kubelet has is old
// when its writes pass.
func TestLease_PassesWhileLeasesvcIsAwayAndComesBack(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*leasesvc){
		"fails":  func(l *leasesvc) { l.err = errors.New("no such holder") },
		"silent": func(l *leasesvc) { l.answer = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			w := newWriterOf(f, leasewrite.Protobuf, 10)
			w.mustRenew()
			byLeasesvc := func() {
				f.leases.Write(node, func(l *coordinationv1.Lease) {
					l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(time.Millisecond)}
					l.Spec.LeaseDurationSeconds = new(int32(20))
				})
			}
			byLeasesvc()
			w.mustRenew()
			w.expectWrites(0, 0)

			f.leasesvc.set(away)
			for i := range 3 {
				before := f.leases.Get(node).Spec.RenewTime
				if code := w.renew(); code != http.StatusOK {
					t.Fatalf("renewal %d while leasesvc is away: %d", i, code)
				}
				stored := f.leases.Get(node)
				if !stored.Spec.RenewTime.After(before.Time) || *stored.Spec.LeaseDurationSeconds != 10 || len(stored.OwnerReferences) != 1 {
					t.Errorf("stored %v", stored)
				}
				if i == 1 {
					byLeasesvc() // a last write that was in flight
				}
			}
			writes := w.expectWrites(0, 3)
			if f.leasesvc.count() != 5 {
				t.Errorf("%d heartbeats after 5 writes", f.leasesvc.count())
			}
			if f.Snapshot().PassthroughSince.IsZero() {
				t.Error("the snapshot does not say that writes pass")
			}

			f.leasesvc.set(func(l *leasesvc) { l.answer, l.err = nil, nil })
			for range 3 {
				w.mustRenew()
			}
			if now := f.leases.Count(http.MethodPut); now != writes {
				t.Errorf("%d writes after leasesvc came back", now-writes)
			}
			s := f.Endpoint.leases.current()
			if !s.since.IsZero() || s.total == 0 || s.passed != 3 || s.beats != 5 || s.conflicts == 0 {
				t.Errorf("state %+v", s)
			}
		})
	}
}

// A write waits for its own heartbeat: 3/20 of the duration of its Lease, 6 s by default. An
// earlier acknowledgement, however young, is none. While writes pass, the next ones wait no longer
// than an acknowledgement usually takes.
func TestLease_PassesWhenItsOwnHeartbeatIsNotAcknowledgedInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	w.mustRenew()
	for _, c := range []struct {
		name               string
		after, least, most time.Duration // of the acknowledgement, and of the write
		writes             int
	}{
		{"late", time.Second, time.Second, 3 * time.Second, 0},
		{"never", time.Minute, 6 * time.Second, 8 * time.Second, 1},
		{"still not", time.Minute, briefWait, 3 * time.Second, 1},
		{"back", 0, 0, briefWait, 0},
		{"late again", time.Second, time.Second, 3 * time.Second, 0},
	} {
		answer, before := make(chan struct{}), f.leases.Count(http.MethodPut)
		f.leasesvc.set(func(l *leasesvc) { l.answer = answer })
		late := time.AfterFunc(c.after, func() { close(answer) })
		began := time.Now()
		w.mustRenew()
		late.Stop()
		if got := f.leases.Count(http.MethodPut) - before; got != c.writes {
			t.Errorf("%s: %d writes, want %d", c.name, got, c.writes)
		}
		if took := time.Since(began); took > c.most || took < c.least {
			t.Errorf("%s: the write took %v, want %v to %v", c.name, took, c.least, c.most)
		}
	}
}

// A kubelet that gives up after 4 s has its Lease written before that.
func TestLease_PassesBeforeTheKubeletGivesUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	w.client.Timeout = 4 * time.Second
	f.leasesvc.set(func(l *leasesvc) { l.answer = make(chan struct{}) })
	w.last = time.Now().Truncate(time.Microsecond)
	w.held.Spec.RenewTime = &metav1.MicroTime{Time: w.last}
	if code := w.send(http.MethodPut, leasesPath+"/"+node+"?timeout=4s"); code != http.StatusOK {
		t.Errorf("%d", code)
	}
	w.expectWrites(0, 1)
}

func TestLease_RestartOfTheAgentCostsNoConflict(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	w.mustRenew()
	f.leases.Write(node, func(l *coordinationv1.Lease) {
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	})
	for _, gone := range []error{nil, errors.New("gone")} {
		f.stop()
		f.start()
		w.client = f.kubelet()
		f.leasesvc.set(func(l *leasesvc) { l.err = gone })
		w.mustRenew()
		w.mustRenew()
	}
	if f.leases.Conflicts() != 0 {
		t.Errorf("%d conflicts", f.leases.Conflicts())
	}
	w.expectWrites(0, 2)
}

func TestLease_DeletedAndMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	w.mustRenew()
	// By the kubelet, through the endpoint.
	if code := f.code(w.client, http.MethodDelete, leasesPath+"/"+node); code != http.StatusOK {
		t.Fatalf("delete: %d", code)
	}
	if code := w.renew(); code != http.StatusNotFound {
		t.Errorf("renewal of a deleted Lease: %d", code)
	}
	w.create()
	w.mustRenew()
	// By something else: the endpoint finds out when it reads again.
	former := *w.held
	f.leases.Delete(node)
	w.create()
	second := *w.held
	w.held = former.DeepCopy()
	if code := w.renew(); code != http.StatusConflict {
		t.Errorf("renewal of a former Lease: %d", code)
	}
	w.held = second.DeepCopy()
	w.mustRenew()
	w.expectWrites(0, 1) // the one that found no Lease; the conflict is not counted
}

func TestLease_ChangeIsWrittenOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.JSON)
	w.mustRenew()
	w.held.Spec.LeaseDurationSeconds = new(int32(60))
	w.held.Labels = map[string]string{"a": "b"}
	w.mustRenew()
	w.mustRenew()
	w.expectWrites(0, 1)
	if stored := f.leases.Get(node); *stored.Spec.LeaseDurationSeconds != 60 || stored.Labels["a"] != "b" {
		t.Errorf("stored %v", stored)
	}
	if !f.Snapshot().PassthroughSince.IsZero() {
		t.Error("a change counts as passthrough")
	}
}

func TestLease_BeatsGoOnWhileNoAPIServerAnswers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.Protobuf)
	f.server.Kill()
	w.mustRenew() // the endpoint has not read the Lease yet
	w.mustRenew()
	f.leasesvc.set(func(l *leasesvc) { l.err = errors.New("gone") })
	if code := w.renew(); code != http.StatusServiceUnavailable {
		t.Errorf("without leasesvc and kube-apiserver: %d", code)
	}
	if f.leasesvc.count() != 3 {
		t.Errorf("%d heartbeats after three writes", f.leasesvc.count())
	}
}

func TestLease_PatchOfTheTimeIsABeat(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.JSON)
	patch := func(body string) (int, string) {
		response, text := f.do(w.client, http.MethodPatch, leasesPath+"/"+node, strings.NewReader(body), "Content-Type", "application/merge-patch+json")
		return response.StatusCode, text
	}
	if code, text := patch(`{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`); code != http.StatusOK || !strings.Contains(text, `"2030-01-01T00:00:00.000000Z"`) {
		t.Errorf("%d %s", code, text)
	}
	if f.leasesvc.count() != 1 || f.leases.Count(http.MethodPatch) != 0 {
		t.Errorf("%d heartbeats, %d patches at kube-apiserver", f.leasesvc.count(), f.leases.Count(http.MethodPatch))
	}
	patch(`{"metadata":{"labels":{"a":"b"}},"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`)
	if f.leasesvc.count() != 1 || f.leases.Count(http.MethodPatch) != 1 {
		t.Errorf("a label: %d heartbeats, %d patches at kube-apiserver", f.leasesvc.count(), f.leases.Count(http.MethodPatch))
	}
}

func TestLease_UnusualBodyPassesWhole(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := newWriter(f, leasewrite.JSON)
	for name, body := range map[string]string{
		"large":      `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node-1","annotations":{"a":"` + strings.Repeat("x", leasewrite.MaxBodyBytes) + `"}}}`,
		"no Lease":   `{"apiVersion":"v1","kind":"Pod"}`,
		"not JSON":   `{`,
		"wrong node": `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node-2","namespace":"kube-node-lease"}}`,
	} {
		before := f.leases.Count(http.MethodPut)
		f.do(w.client, http.MethodPut, leasesPath+"/"+node, strings.NewReader(body), "Content-Type", leasewrite.JSON)
		if f.leases.Count(http.MethodPut) != before+1 || f.leasesvc.count() != 0 {
			t.Errorf("%s: %d writes and %d heartbeats", name, f.leases.Count(http.MethodPut)-before, f.leasesvc.count())
		}
	}
}
