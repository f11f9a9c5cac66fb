package recording

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func viewOf(t *testing.T, object any) View {
	t.Helper()
	view, ok := Of(object)
	if !ok {
		t.Fatalf("%T is not recorded", object)
	}
	return view
}

func podOf(name, node, ip string) *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{AppLabel: "web"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name[:strings.LastIndexByte(name, '-')], Controller: &yes}},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

func sliceOf(name string, ready bool, addresses ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "test"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return slice
}

func eventOf(reason, about, message string) *corev1.Event {
	return &corev1.Event{
		Reason: reason, Message: message, Type: corev1.EventTypeNormal, ReportingController: "kubelet",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: about},
	}
}

// run is the same scenario with other names, addresses and order of Pods.
func run(t *testing.T, hash, first, second string, network string) Recording {
	t.Helper()
	tracker, now := NewTracker(), time.Duration(0)
	observe := func(object any) {
		now += 10 * time.Millisecond
		tracker.Observe(now, viewOf(t, object))
	}
	pods := map[string]*corev1.Pod{
		"w1": podOf("web-"+hash+"-"+first, "w1", network+".5"),
		"w2": podOf("web-"+hash+"-"+second, "w2", network+".55"),
	}
	tracker.BeginStep(now, "rollout")
	order := []string{"w1", "w2"}
	if first > second {
		order = []string{"w2", "w1"}
	}
	for _, node := range order {
		observe(pods[node])
	}
	observe(eventOf("Started", pods["w2"].Name, "Container of web-"+hash+" at "+network+".55:80 started in 1."+hash[:1]+"s"))
	observe(eventOf("Started", pods["w2"].Name, "Container of web-"+hash+" at "+network+".55:80 started in 2."+hash[:1]+"s"))
	observe(sliceOf("web-"+hash+"x", true, network+".5", network+".55"))
	now += time.Second
	tracker.BeginStep(now, "deleted")
	now += time.Second
	tracker.Gone(now, KindPod, pods["w1"].Name)
	return tracker.Finish(now)
}

func TestFinish_RunsThatDifferInNamesAloneAreEqual(t *testing.T) {
	one, other := run(t, "1a2b", "aaaaa", "bbbbb", "10.1.2"), run(t, "3c4d", "zzzzz", "ccccc", "10.9.9")
	// Pods come in another order, so order and times of the first two changes differ.
	if got := Compare(one, other, Rules{Tolerance: tolerance}); len(got.Differences) > 0 {
		t.Errorf("differences = %v, want none", got.Problems())
	}
	var lines []string
	for _, c := range one.Changes {
		if c.Kind == KindEvent || c.Step == "deleted" || strings.HasPrefix(c.Field, "endpoint ") {
			lines = append(lines, c.Object+" | "+c.Field+" | "+c.Value)
		}
	}
	want := []string{
		"Pod web-2 | Started | Normal from kubelet: Container of web-replicas-1 at (address of web-2):80 started in (duration)",
		"web-slice-1 | endpoint (address of web-1) | ready",
		"web-slice-1 | endpoint (address of web-2) | ready",
		"web-1 | exists | ",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestNormalize_WhatDiffersByChanceIsReplaced(t *testing.T) {
	for text, want := range map[string]string{
		"Normal: (combined from similar events): Created pod: x":        "Normal: Created pod: x",
		"MountVolume.SetUp failed for volume \"kube-api-access-rm5mf\"": "MountVolume.SetUp failed for volume \"kube-api-access-(random)\"",
		"pod web_default(0f8fad5b-d9cb-469f-a165-70867728950e)":         "pod web_default((uid))",
		"took 1m2.5s":                           "took (duration)",
		"at 2026-11-23T00:44:28.066Z":           "at (time)",
		"at 2026-11-23 00:44:28 +0000 UTC":      "at (time)",
		"0123456789abcdef0123456789abcdef gone": "(id) gone",
		"Node w1 status is now: NodeReady":      "Node w1 status is now: NodeReady",
	} {
		got := normalize([]Change{{Kind: KindEvent, Value: text}}, nil)[0].Value
		if got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestTracker_FirstStepBeginsWithWhatIsThereExceptEvents(t *testing.T) {
	tracker := NewTracker()
	tracker.Observe(0, viewOf(t, sliceOf("web-1", false, "10.0.0.1")))
	tracker.Observe(0, viewOf(t, eventOf("Started", "x", "text")))
	tracker.BeginStep(time.Second, "one")
	tracker.BeginStep(2*time.Second, "two")
	got := tracker.Finish(3 * time.Second)
	if len(got.Changes) != 5 || got.Changes[0].Step != "one" || got.Changes[0].After != 0 {
		t.Errorf("changes = %v, want the five fields of the slice, in the first step alone", got.Changes)
	}
}

func TestTracker_RenewalsAreCountedForEachStepAndDoNotDisturbTheQuiet(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	tracker := NewTracker()
	renew := func(at time.Duration) {
		moment := metav1.NewMicroTime(time.Unix(0, 0).Add(at))
		lease.Spec.RenewTime = &moment
		tracker.Observe(at, viewOf(t, lease))
	}
	renew(0)
	tracker.BeginStep(0, "one")
	renew(10 * time.Second)
	renew(20 * time.Second)
	tracker.Observe(21*time.Second, viewOf(t, lease)) // the same again
	if got := tracker.LastChange(); got != 0 {
		t.Errorf("last change after %v, want none", got)
	}
	tracker.BeginStep(30*time.Second, "two")
	renew(40 * time.Second)
	var counts []string
	for _, c := range tracker.Finish(50 * time.Second).Changes {
		if c.Field == fieldRenewals {
			counts = append(counts, c.Step+" "+c.Value)
		}
	}
	if diff := cmp.Diff([]string{"one 2", "two 1"}, counts); diff != "" {
		t.Errorf("renewals (-want +got):\n%s", diff)
	}
}

func TestOf_FieldsOfEachKind(t *testing.T) {
	holder, seconds, port, name := "w1", int32(40), int32(8080), "http"
	tcp := corev1.ProtocolTCP
	for _, c := range []struct {
		object any
		want   map[string]string
	}{
		{&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{"kubernetes.io/os": "linux", "other": "x"}},
			Spec:       corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "k", Effect: "NoExecute"}}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "Unknown", Reason: "R", Message: "M"}}},
		}, map[string]string{"exists": "yes", "label kubernetes.io/os": "linux", "taint k:NoExecute": "present", "unschedulable": "yes", "condition Ready": "Unknown R: M"}},
		{&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}},
			map[string]string{"exists": "yes", "holder": "w1", "duration": "40 seconds"}},
		{&corev1.Pod{Status: corev1.PodStatus{Phase: "Failed", Reason: "Evicted", Conditions: []corev1.PodCondition{{Type: "Ready", Status: "False"}, {Type: "Other", Status: "True"}}}},
			map[string]string{"exists": "yes", "phase": "Failed", "reason": "Evicted", "condition Ready": "False"}},
		{&corev1.Endpoints{Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}}, NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.0.0.2"}},
			Ports: []corev1.EndpointPort{{Name: "https", Port: 6443, Protocol: tcp}},
		}}}, map[string]string{"exists": "yes", "address 10.0.0.1": "ready on https 6443 TCP", "address 10.0.0.2": "not ready on https 6443 TCP"}},
		{&corev1.Service{Spec: corev1.ServiceSpec{Type: "ClusterIP", Ports: []corev1.ServicePort{{Port: 80, Protocol: tcp}}}},
			map[string]string{"exists": "yes", "type": "ClusterIP", "port (unnamed)": "80 TCP to 0"}},
		{&discoveryv1.EndpointSlice{AddressType: "IPv4", Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}}, Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"}, NodeName: &holder, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}},
		}}}, map[string]string{"exists": "yes", "service": "no service", "address type": "IPv4", "port http": "8080 TCP", "endpoint 10.0.0.1": "not ready on w1 for zone a"}},
	} {
		if diff := cmp.Diff(c.want, viewOf(t, c.object).Fields); diff != "" {
			t.Errorf("fields of %T (-want +got):\n%s", c.object, diff)
		}
	}
	if _, ok := Of(&corev1.Secret{}); ok {
		t.Error("a Secret is recorded")
	}
}

func TestLoad_ReadsWhatSaveWrote(t *testing.T) {
	want := run(t, "1a2b", "aaaaa", "bbbbb", "10.1.2")
	want.Side, want.Began, want.Versions = "upstream", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), map[string]string{"kubelet": "v1"}
	var file bytes.Buffer
	if err := want.Save(&file); err != nil {
		t.Fatal(err)
	}
	text := file.String()
	got, err := Load(&file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("recording (-saved +loaded):\n%s", diff)
	}
	for _, broken := range []string{"", "{", text + "{", strings.Replace(text, `{"step":"rollout"`, `{"step":"none"`, 1)} {
		if _, err := Load(strings.NewReader(broken)); err == nil {
			t.Errorf("a broken file is read without an error: %q", broken[:min(len(broken), 40)])
		}
	}
}
