package shadow_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/shadow"
)

// slice returns a slice of port 8080 with the given endpoints, as kube-controller-manager writes
// it.
func slice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	earlier, later := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: "u-1", ResourceVersion: "7", Labels: map[string]string{"app": "web"},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: name},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Service", Name: "web", UID: "s-1"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl-edit", Time: &later}, {Manager: "kube-controller-manager", Time: &earlier}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   endpoints,
	}
}

func endpoint(address string, changes ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "pod-" + address},
	}
	for _, change := range changes {
		change(&e)
	}
	return e
}

func unready(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) }

func hinted(e *discoveryv1.Endpoint) {
	e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
}

func update(from, to *discoveryv1.EndpointSlice) pack.Change {
	return pack.Change{Verb: planned.Update, From: from, Slice: to, Reason: pack.EndpointsChanged}
}

func remove(from *discoveryv1.EndpointSlice, reason pack.Reason) pack.Change {
	return pack.Change{Verb: planned.Delete, From: from, Slice: from, Reason: reason}
}

func create(to *discoveryv1.EndpointSlice, reason pack.Reason) pack.Change {
	return pack.Change{Verb: planned.Create, Slice: to, Reason: reason}
}

func plan(changes ...pack.Change) shadow.Input {
	return shadow.Input{Plan: pack.Plan{Changes: changes}}
}

func TestCompare(t *testing.T) {
	labelled := slice("web-1", endpoint("10.0.0.1"))
	labelled.Labels = map[string]string{"app": "shop"}
	otherPort := slice("web-1", endpoint("10.0.0.1"))
	otherPort.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(9090)), Protocol: new(corev1.ProtocolTCP)}}
	mirrored := func(name string, port int32) *discoveryv1.EndpointSlice {
		s := slice(name, endpoint("10.0.0.1"))
		s.OwnerReferences[0].Kind = "Endpoints"
		s.Ports[0].Port = &port
		return s
	}
	hints := plan(update(slice("web-1", endpoint("10.0.0.1")), slice("web-1", endpoint("10.0.0.1", hinted))))
	hints.AllocatesHints = true
	spilled := plan(create(slice("web-2", endpoint("10.0.0.9")), pack.NewEndpoints))
	spilled.Spills = true

	for name, test := range map[string]struct {
		in   shadow.Input
		want []string
	}{
		"nothing to change": {plan(), nil},
		"a condition": {
			plan(update(slice("web-1", endpoint("10.0.0.1"), endpoint("10.0.0.2")), slice("web-1", endpoint("10.0.0.1", unready), endpoint("10.0.0.2")))),
			[]string{`content web-1: endpoints["10.0.0.1 pod-10.0.0.1"].conditions.ready: true -> false`},
		},
		"an endpoint in place of another": {
			plan(update(slice("web-1", endpoint("10.0.0.1")), slice("web-1", endpoint("10.0.0.2")))),
			[]string{`content web-1: endpoints["10.0.0.1 pod-10.0.0.1"]: ` + encoded("10.0.0.1") + ` -> `, `content web-1: endpoints["10.0.0.2 pod-10.0.0.2"]:  -> ` + encoded("10.0.0.2")},
		},
		"an endpoint twice": {
			plan(update(slice("web-1", endpoint("10.0.0.1"), endpoint("10.0.0.1")), slice("web-1", endpoint("10.0.0.1")))),
			[]string{`content web-1: endpoints["10.0.0.1 pod-10.0.0.1"]: ` + encoded("10.0.0.1") + ` -> `},
		},
		"endpoints that only move": {
			plan(
				update(slice("web-1", endpoint("10.0.0.1")), slice("web-1", endpoint("10.0.0.1"), endpoint("10.0.0.2"))),
				remove(slice("web-2", endpoint("10.0.0.2")), pack.Compacted),
			),
			[]string{"packing web-1 (SLICES_PACKED_OTHERWISE)", "packing web-2 (SLICES_PACKED_OTHERWISE)"},
		},
		"an endpoint that moves and changes": {
			plan(
				update(slice("web-1"), slice("web-1", endpoint("10.0.0.2", unready))),
				remove(slice("web-2", endpoint("10.0.0.2")), pack.Compacted),
			),
			[]string{"packing web-1 (SLICES_PACKED_OTHERWISE)", `unwanted web-2: endpoints["10.0.0.2 pod-10.0.0.2"].conditions.ready: true -> false`},
		},
		"a missing slice": {
			plan(create(slice("web-1", endpoint("10.0.0.1")), pack.NewEndpoints)),
			[]string{`missing web-1: endpoints["10.0.0.1 pod-10.0.0.1"]:  -> ` + encoded("10.0.0.1")},
		},
		"a missing empty slice":       {plan(create(slice("web-1"), pack.Placeholder)), []string{"missing web-1"}},
		"a slice of a former family":  {plan(remove(slice("web-1"), pack.FamilyGone)), []string{"unwanted web-1"}},
		"a slice without a selector":  {plan(remove(slice("web-1", endpoint("10.0.0.1")), pack.SelectorGone)), []string{`unwanted web-1 (SELECTOR_CLEANED_UP): endpoints["10.0.0.1 pod-10.0.0.1"]: ` + encoded("10.0.0.1") + ` -> `}},
		"labels":                      {plan(update(labelled, slice("web-1", endpoint("10.0.0.1")))), []string{`metadata web-1: metadata.labels["app"]: "shop" -> "web"`}},
		"the time of the last change": {plan(update(slice("web-1"), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{"app": "web"}, OwnerReferences: slice("").OwnerReferences}})), []string{"packing web-1 (SLICES_PACKED_OTHERWISE)"}},
		"ports": {
			plan(update(otherPort, slice("web-1", endpoint("10.0.0.1")))),
			[]string{
				`content web-1: endpoints["10.0.0.1 pod-10.0.0.1"]: ` + encoded("10.0.0.1") + ` -> `,
				`content web-1: endpoints["10.0.0.1 pod-10.0.0.1"]:  -> ` + encoded("10.0.0.1"),
				`content web-1: ports: [{"name":"http","protocol":"TCP","port":9090}] -> [{"name":"http","protocol":"TCP","port":8080}]`,
			},
		},
		"hints": {
			plan(update(slice("web-1", endpoint("10.0.0.1")), slice("web-1", endpoint("10.0.0.1", hinted)))),
			[]string{`content web-1: endpoints["10.0.0.1 pod-10.0.0.1"].hints:  -> {"forZones":[{"name":"z"}]}`},
		},
		"hints of the topology mode": {hints, []string{`content web-1 (HINTS_ALLOCATED_OTHERWISE): endpoints["10.0.0.1 pod-10.0.0.1"].hints:  -> {"forZones":[{"name":"z"}]}`}},
		"addresses that spill":       {spilled, []string{`missing web-2 (MIRROR_SPILLED): endpoints["10.0.0.9 pod-10.0.0.9"]:  -> ` + encoded("10.0.0.9")}},
		"a port name twice": {
			plan(create(mirrored("web-1", 1), pack.NewEndpoints), create(mirrored("web-2", 2), pack.NewEndpoints)),
			[]string{`missing web-1 (PORT_NAMES_REPEATED): endpoints["10.0.0.1 pod-10.0.0.1"]:  -> ` + encoded("10.0.0.1"), `missing web-2 (PORT_NAMES_REPEATED): endpoints["10.0.0.1 pod-10.0.0.1"]:  -> ` + encoded("10.0.0.1")},
		},
		"more slices than are needed": {
			shadow.Input{Slices: []*discoveryv1.EndpointSlice{slice("a"), slice("b")}, Least: 1, Subject: difference.Object{Kind: "Service", Name: "web"}},
			[]string{"packing web (SLICES_PACKED_OTHERWISE)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, lines(shadow.Compare(test.in))); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

func encoded(address string) string {
	return `{"addresses":["` + address + `"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","namespace":"shop","name":"pod-` + address + `"}}`
}

func lines(found []difference.Difference) []string {
	var all []string
	for _, d := range found {
		line := string(d.Kind) + " " + d.Object.Name
		if d.Reason != "" {
			line += " (" + d.Reason + ")"
		}
		if len(d.Fields) == 0 {
			all = append(all, line)
		}
		for _, field := range d.Fields {
			all = append(all, line+": "+field.Path+": "+field.Before+" -> "+field.After)
		}
	}
	return all
}

func TestCompare_NamesWriterAndVersion(t *testing.T) {
	found := shadow.Compare(plan(update(slice("web-1", endpoint("10.0.0.1")), slice("web-1"))))
	if len(found) != 1 || found[0].Writer != "kubectl-edit" || found[0].Version != "7" || found[0].Object.UID != "u-1" {
		t.Errorf("found %+v, want the manager that wrote last, the version and the UID", found)
	}
}
