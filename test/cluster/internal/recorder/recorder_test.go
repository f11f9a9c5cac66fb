package recorder

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = time.Minute

func TestRecorder_RecordsWhatAClientSees(t *testing.T) {
	kube := testkit.Kube(t)
	namespace := testkit.Namespace(t, kube)
	r := start(t, New(kube, namespace))
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, options := t.Context(), metav1.CreateOptions{}
	r.BeginStep("made")
	no := false
	must(kube.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-x7x7x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}}},
	}, options))
	must(kube.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "event"}, Reason: "Tested", Message: "took 1.5s", Type: "Normal",
		Source:         corev1.EventSource{Component: "test"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "pod", Namespace: namespace},
	}, options))
	await(t, r, recording.KindEndpointSlice, 1)
	if err := r.AwaitQuiet(ctx, 300*time.Millisecond, patience); err != nil {
		t.Fatal(err)
	}
	r.BeginStep("deleted")
	must(nil, kube.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, "web-x7x7x", metav1.DeleteOptions{}))
	await(t, r, recording.KindEndpointSlice, 0)

	var got []string
	for _, c := range r.Finish().Changes {
		if c.Kind == recording.KindEndpointSlice || c.Kind == recording.KindEvent {
			got = append(got, fmt.Sprintf("%s: %s %s: %s=%s", c.Step, c.Kind, c.Object, c.Field, c.Value))
		}
	}
	want := []string{
		"made: EndpointSlice web-slice-1: address type=IPv4",
		"made: EndpointSlice web-slice-1: endpoint 10.0.0.1=not ready",
		"made: EndpointSlice web-slice-1: exists=yes",
		"made: EndpointSlice web-slice-1: service=web",
		"made: Event Pod pod: Tested=Normal from test: took (duration)",
		"deleted: EndpointSlice web-slice-1: exists=",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestAwait_EndsWithWhatIsSeenInstead(t *testing.T) {
	kube := testkit.Kube(t)
	r := start(t, New(kube, testkit.Namespace(t, kube)))
	ctx, cancel := context.WithCancelCause(t.Context())
	late, seen := errors.New("too late"), errors.New("seen")
	cancel(late)
	if err := r.Await(ctx, func(Views) error { return seen }); !errors.Is(err, late) || !errors.Is(err, seen) {
		t.Errorf("error = %v, want both causes", err)
	}
}

func TestReplace_WhatALaterListLacksIsGone(t *testing.T) {
	kube := testkit.Kube(t)
	r := New(kube) // it does not run: the lists come from the test
	s := r.watches[0].sink
	nodeOf := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	for _, list := range [][]any{{nodeOf("a"), nodeOf("b")}, {nodeOf("b"), nodeOf("c")}} {
		if err := s.Replace(list, "1"); err != nil {
			t.Fatal(err)
		}
	}
	r.BeginStep("one")
	var names []string
	for _, c := range r.Finish().Changes {
		names = append(names, c.Object)
	}
	if diff := cmp.Diff([]string{"b", "c"}, names); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// start runs the recorder until the test ends.
func start(t *testing.T, r *Recorder) *Recorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	listed, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if err := r.AwaitListed(listed); err != nil {
		t.Fatal(err)
	}
	return r
}

func await(t *testing.T, r *Recorder, kind string, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := r.Await(ctx, func(views Views) error {
		if got := len(views(kind)); got != count {
			return fmt.Errorf("%d of kind %s, want %d", got, kind, count)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
