package desired_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

func drawTarget(t *rapid.T) *corev1.ObjectReference {
	text := rapid.SampledFrom([]string{"", "Pod", "a", "\x00", "\x00\x01b"})
	if rapid.Bool().Draw(t, "no target") {
		return nil
	}
	return &corev1.ObjectReference{
		Kind: text.Draw(t, "kind"), APIVersion: text.Draw(t, "apiVersion"), FieldPath: text.Draw(t, "fieldPath"),
		ResourceVersion: text.Draw(t, "resourceVersion"),
		Namespace:       "n", Name: "p", UID: types.UID(text.Draw(t, "uid")),
	}
}

func mirrored(target *corev1.ObjectReference) desired.Endpoint {
	endpoint := desired.Endpoint{
		Identity: desired.Identity{Addresses: "10.1.0.1", Hostname: "h"},
		Target:   desired.TargetOf(target),
		Node:     "a",
		Ready:    true,
		Mirrored: true,
	}
	if target != nil {
		endpoint.PodNamespace, endpoint.PodName = target.Namespace, target.Name
	}
	return endpoint
}

func TestMirrored_ReadsBackWhatObjectRenders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		target := drawTarget(t)
		want := mirrored(target)
		object := want.Object()
		if diff := gocmp.Diff(target, object.TargetRef); diff != "" {
			t.Fatalf("target (-want +got):\n%s", diff)
		}
		if object.Conditions.Serving != nil || object.Conditions.Terminating != nil || object.Hints != nil || object.Zone != nil {
			t.Fatalf("object %+v, want only the condition ready", object)
		}
		if got, exact := desired.FromObject(&object); !exact || got != want {
			t.Fatalf("read back %+v (exact %t), want %+v", got, exact, want)
		}
	})
}

// Two targets count as the same exactly when they differ in nothing but the resourceVersion.
func TestMirrored_SameTarget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawTarget(t), drawTarget(t)
		same := mirrored(a).SameMirrored(mirrored(b))
		if a != nil && b != nil {
			a.ResourceVersion = b.ResourceVersion
		}
		if want := gocmp.Equal(a, b); same != want {
			t.Fatalf("targets %+v and %+v are the same: %t, want %t", a, b, same, want)
		}
	})
}

func TestMirrored_EditsOfOtherWriters(t *testing.T) {
	empty, yes := "", true
	for name, c := range map[string]struct {
		edit func(*discoveryv1.Endpoint)
		same bool
	}{
		"hints": {func(e *discoveryv1.Endpoint) {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
		}, true},
		"empty zone":     {func(e *discoveryv1.Endpoint) { e.Zone = &empty }, false},
		"empty node":     {func(e *discoveryv1.Endpoint) { e.NodeName = &empty }, false},
		"serving":        {func(e *discoveryv1.Endpoint) { e.Conditions.Serving = &yes }, false},
		"no ready":       {func(e *discoveryv1.Endpoint) { e.Conditions.Ready = nil }, false},
		"all conditions": {func(e *discoveryv1.Endpoint) { e.Conditions.Serving, e.Conditions.Terminating = &yes, &yes }, false},
	} {
		want := mirrored(nil)
		object := want.Object()
		c.edit(&object)
		found, exact := desired.FromObject(&object)
		if same := exact && want.SameMirrored(found); same != c.same {
			t.Errorf("%s: the same is %t, want %t", name, same, c.same)
		}
	}
}

func TestParseAddress_AcceptsWhatOldStoresHave(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.000.00.0001": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "::ffff:010.0.0.1": "10.0.0.1",
		"FD00::0001": "fd00::1", "fd00::00001": "fd00::1", "0:0::0": "::", "0.0.0.0": "0.0.0.0",
		"10.0.0": "", "10.0.0.256": "", "10.0.0.1.": "", "fe80::1%eth0": "", "": "", "::g": "", "10.0.0.1 ": "", "1:2": "",
	} {
		got, family, ok := desired.ParseAddress(text)
		if got != want || ok != (want != "") || (family == "") != (want == "") {
			t.Errorf("%q is %q of %q, %t, want %q", text, got, family, ok, want)
		}
	}
}
