package mirror_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// edited returns a slice as another writer left it.
func edited(slice *discoveryv1.EndpointSlice, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	after := slice.DeepCopy()
	change(after)
	after.ResourceVersion += "-edited"
	setManager(after, slice, "kubectl-annotate")
	return after
}

func TestCases15To17_EditsOfOtherWriters(t *testing.T) {
	endpoints := with(endpointsOf(subset([]string{"http:80"}, "10.0.0.1", "10.0.0.2")), func(endpoints *corev1.Endpoints) {
		endpoints.Labels = map[string]string{"team": "a"}
		endpoints.Annotations = map[string]string{"note": "n"}
	})
	yes, value := true, "x"
	for name, c := range map[string]struct {
		edit func(*discoveryv1.EndpointSlice)
		want []string
		// stays says what the edit leaves on the slices that are not being deleted.
		stays func(*discoveryv1.EndpointSlice) bool
	}{
		"15: an endpoint less":    {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: no endpoints":        {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: one endpoint twice":  {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints[1] = s.Endpoints[0] }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: an endpoint more":    {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: a condition":         {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Serving = &yes }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: no condition":        {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = nil }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: a zone":              {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = &value }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: a hostname":          {edit: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Hostname = &value }, want: []string{"update ENDPOINTS_CHANGED"}},
		"15: no ports":            {edit: func(s *discoveryv1.EndpointSlice) { s.Ports = nil }, want: []string{"update RECYCLED"}},
		"15: a label more":        {edit: func(s *discoveryv1.EndpointSlice) { s.Labels["by"] = "hand" }, want: []string{"update LABELS_CHANGED"}},
		"15: a label less":        {edit: func(s *discoveryv1.EndpointSlice) { delete(s.Labels, "team") }, want: []string{"update LABELS_CHANGED"}},
		"15: headless":            {edit: func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" }, want: []string{"update LABELS_CHANGED"}},
		"15: an annotation less":  {edit: func(s *discoveryv1.EndpointSlice) { s.Annotations = nil }, want: []string{"update ANNOTATIONS_CHANGED"}},
		"15: another value":       {edit: func(s *discoveryv1.EndpointSlice) { s.Annotations["note"] = "m" }, want: []string{"update ANNOTATIONS_CHANGED"}},
		"11: the owner goes":      {edit: func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }, want: []string{"update OWNER_CHANGED"}},
		"19: an earlier owner":    {edit: func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "earlier" }, want: []string{"update OWNER_CHANGED"}},
		"17: an FQDN slice":       {edit: func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, want: []string{"create NEW_ENDPOINTS", "delete FAMILY_GONE"}},
		"16: held by a finalizer": {edit: deleted, want: []string{"create NEW_ENDPOINTS"}},
		"15: hints": {
			edit: func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}}
			},
			stays: func(s *discoveryv1.EndpointSlice) bool {
				return s.Endpoints[0].Hints != nil && len(s.Endpoints[0].Hints.ForZones) == 2
			},
		},
		"8: an annotation more": {
			edit:  func(s *discoveryv1.EndpointSlice) { s.Annotations["by"] = "hand" },
			stays: func(s *discoveryv1.EndpointSlice) bool { return s.Annotations["by"] == "hand" },
		},
		"14: the trigger time": {
			edit: func(s *discoveryv1.EndpointSlice) { s.Annotations[corev1.EndpointsLastChangeTriggerTime] = "t" },
			stays: func(s *discoveryv1.EndpointSlice) bool { // until the slice is written for another reason
				return s.Annotations[corev1.EndpointsLastChangeTriggerTime] == ""
			},
		},
		"8: a finalizer": {
			edit:  func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"example.com/hold"} },
			stays: func(s *discoveryv1.EndpointSlice) bool { return len(s.Finalizers) == 1 },
		},
		"8: a further owner": {
			edit: func(s *discoveryv1.EndpointSlice) {
				s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "further"})
			},
			stays: func(s *discoveryv1.EndpointSlice) bool { return len(s.OwnerReferences) == 2 },
		},
		"11: another controller": {
			edit: func(s *discoveryv1.EndpointSlice) {
				s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "further", Controller: &yes}}
			},
			want:  []string{"update OWNER_CHANGED"},
			stays: func(s *discoveryv1.EndpointSlice) bool { return len(s.OwnerReferences) == 2 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := newCluster()
			before.sync(t, endpoints, standard())
			store := newCluster(edited(before.list()[0], c.edit))
			if diff := gocmp.Diff(c.want, verbs(store.sync(t, endpoints, standard()))); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			checkSlices(t, store, endpoints, standard())
			// A change of an endpoint writes the slice: what stays must survive it.
			flipped := endpoints.DeepCopy()
			flipped.Subsets = []corev1.EndpointSubset{subset([]string{"http:80"}, "!10.0.0.1", "10.0.0.2")}
			store.sync(t, flipped, standard())
			checkSlices(t, store, flipped, standard())
			if c.stays != nil && !c.stays(store.live()[0]) {
				t.Errorf("the edit is lost: %+v", store.live()[0])
			}
		})
	}
}

// kube-apiserver refuses a slice whose annotations are larger than 256 KiB together.
func TestAnnotationsOfOthersGoIfTheyAreTooLarge(t *testing.T) {
	endpoints := with(endpointsOf(subset([]string{"http:80"}, "10.0.0.1")), func(endpoints *corev1.Endpoints) {
		endpoints.Annotations = map[string]string{"note": strings.Repeat("n", 200<<10)}
	})
	for name, c := range map[string]struct {
		size int
		kept bool
	}{
		"small enough": {size: 56<<10 - len("note") - len("by"), kept: true},
		"too large":    {size: 56<<10 - len("note") - len("by") + 1},
	} {
		before := newCluster()
		before.sync(t, endpoints, standard())
		store := newCluster(edited(before.list()[0], func(slice *discoveryv1.EndpointSlice) {
			slice.Annotations = map[string]string{"by": strings.Repeat("h", c.size)}
		}))
		store.sync(t, endpoints, standard())
		slice := store.live()[0]
		if _, kept := slice.Annotations["by"]; kept != c.kept || slice.Annotations["note"] != endpoints.Annotations["note"] {
			t.Errorf("%s: the slice has %d annotations, want that of the Endpoints object, and the other one: %t", name, len(slice.Annotations), c.kept)
		}
		if again := store.sync(t, endpoints, standard()); !again.Empty() {
			t.Errorf("%s: more writes: %v", name, verbs(again))
		}
	}
}

func deleted(slice *discoveryv1.EndpointSlice) {
	slice.Finalizers = []string{"example.com/hold"}
	slice.DeletionTimestamp = &metav1.Time{}
}

// The annotation of an Endpoints object goes from the slice with its last writer: this program or
// kube-controller-manager. That of another writer, or of an unknown one, stays.
func TestPromise8_AnnotationsGoWithTheirWriter(t *testing.T) {
	for manager, goes := range map[string]bool{"trivet": true, "kube-controller-manager": true, "kubectl-annotate": false, "": false} {
		t.Run(manager, func(t *testing.T) {
			endpoints := endpointsOf(subset([]string{"http:80"}, "10.0.0.1"))
			store := newCluster()
			store.sync(t, endpoints, standard())
			slice := store.list()[0].DeepCopy()
			slice.Annotations = map[string]string{"note": "n"}
			if manager != "" {
				setManager(slice, store.list()[0], manager)
			}
			slice.ManagedFields = mirror.AnnotationFields(slice.ManagedFields)
			store = newCluster(slice)
			plan := store.sync(t, endpoints, standard())
			if _, stays := store.list()[0].Annotations["note"]; stays == goes || len(plan.Changes) != map[bool]int{true: 1}[goes] {
				t.Errorf("annotations %v after writes %v, want them gone: %t", store.list()[0].Annotations, verbs(plan), goes)
			}
		})
	}
}

func TestAnnotationFields_KeepsOnlyAnnotationsOfOurManagers(t *testing.T) {
	entry := func(manager, raw string) metav1.ManagedFieldsEntry {
		fields := &metav1.FieldsV1{}
		fields.SetRawBytes([]byte(raw))
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsType: "FieldsV1", FieldsV1: fields, Time: &metav1.Time{}}
	}
	got := mirror.AnnotationFields([]metav1.ManagedFieldsEntry{
		entry("trivet", `{"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:a":{}},"f:labels":{"f:b":{}}}}`),
		entry("kube-controller-manager", `{"f:metadata":{"f:labels":{"f:annotations":{}}}}`),
		entry("kubectl", `{"f:metadata":{"f:annotations":{"f:c":{}}}}`),
		entry("trivet", `not JSON "f:annotations"`),
		{Manager: "trivet"},
	})
	if len(got) != 1 || got[0].Manager != "trivet" || string(got[0].FieldsV1.GetRawBytes()) != `{"f:metadata":{"f:annotations":{".":{},"f:a":{}}}}` || got[0].Time != nil {
		t.Errorf("fields %+v, want those of a", got)
	}
}

func TestCase17_DuplicatesPreMade(t *testing.T) {
	endpoints := endpointsOf(subset([]string{"http:80"}, "10.0.0.1", "10.0.0.2", "10.0.0.3"))
	whole := newCluster()
	whole.sync(t, endpoints, standard())
	copyOf := func(name string, from, to int) *discoveryv1.EndpointSlice {
		slice := whole.list()[0].DeepCopy()
		slice.Name, slice.UID, slice.Endpoints = name, "uid-of-"+"-"+slice.UID, slice.Endpoints[from:to]
		return slice
	}
	for name, c := range map[string]struct {
		existing []*discoveryv1.EndpointSlice
		want     []string
	}{
		"two of the same":               {existing: []*discoveryv1.EndpointSlice{copyOf("a", 0, 3), copyOf("b", 0, 3)}, want: []string{"delete COMPACTED"}},
		"the one without an owner goes": {existing: []*discoveryv1.EndpointSlice{ownerless(copyOf("a", 0, 3)), copyOf("b", 0, 3)}, want: []string{"delete COMPACTED"}},
		"the one that differs goes":     {existing: []*discoveryv1.EndpointSlice{notReady(copyOf("a", 0, 3)), copyOf("b", 0, 3)}, want: []string{"delete COMPACTED"}},
		"the fullest stays":             {existing: []*discoveryv1.EndpointSlice{copyOf("a", 0, 2), copyOf("b", 0, 3), copyOf("c", 2, 3)}, want: []string{"delete COMPACTED", "delete COMPACTED"}},
		"two halves":                    {existing: []*discoveryv1.EndpointSlice{copyOf("a", 0, 2), copyOf("b", 2, 3)}, want: []string{"update ENDPOINTS_CHANGED", "delete COMPACTED"}},
		"neither has any":               {existing: []*discoveryv1.EndpointSlice{copyOf("a", 0, 0), copyOf("b", 0, 0)}, want: []string{"update ENDPOINTS_CHANGED", "delete EMPTIED"}},
		"one is held":                   {existing: []*discoveryv1.EndpointSlice{with(copyOf("a", 0, 3), deleted), copyOf("b", 0, 3)}},
		"surplus is reused":             {existing: []*discoveryv1.EndpointSlice{copyOf("a", 0, 3), copyOf("b", 0, 3)}, want: []string{"update RECYCLED"}},
		"surplus holds some":            {existing: []*discoveryv1.EndpointSlice{copyOf("a", 0, 2), copyOf("b", 2, 3)}, want: []string{"create NEW_ENDPOINTS", "update ENDPOINTS_CHANGED", "delete COMPACTED"}},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := endpoints.DeepCopy()
			if name == "surplus is reused" || name == "surplus holds some" {
				wanted.Subsets = append(wanted.Subsets, subset([]string{"admin:90"}, "10.0.0.9"))
			}
			store := newCluster(c.existing...)
			plan := store.sync(t, wanted, standard())
			if diff := gocmp.Diff(c.want, verbs(plan)); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			checkSlices(t, store, wanted, standard())
			for _, change := range plan.Changes {
				if change.Reason == pack.Compacted && !change.Supersedes() {
					t.Errorf("the deletion of %s does not wait for the other writes", change.Slice.Name)
				}
			}
		})
	}
}

// The second slice goes, because one is enough. Its address moves to the first one with a hostname:
// the deletion must wait for that write.
func TestMake_DeletionWaitsForAnAddressThatChanges(t *testing.T) {
	limits := mirror.Limits{PerSubset: 2, Spill: true}
	store := newCluster()
	store.sync(t, endpointsOf(subset([]string{"http:80"}, "10.0.0.1", "10.0.0.2", "10.0.0.3")), limits)
	endpoints := endpointsOf(subset([]string{"http:80"}, "10.0.0.1", "10.0.0.3"))
	endpoints.Subsets[0].Addresses[1].Hostname = "web-3"
	plan := store.sync(t, endpoints, limits)
	if diff := gocmp.Diff([]string{"update ENDPOINTS_CHANGED", "delete EMPTIED"}, verbs(plan)); diff != "" {
		t.Fatalf("writes (-want +got):\n%s", diff)
	}
	if !plan.Changes[1].Supersedes() {
		t.Error("the deletion does not wait for the update")
	}
	checkSlices(t, store, endpoints, limits)
}

func ownerless(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice.OwnerReferences = nil
	return slice
}

func notReady(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice = slice.DeepCopy()
	*slice.Endpoints[0].Conditions.Ready = false
	return slice
}

func TestCase20_TerminatingEndpointsGetNoNewSlice(t *testing.T) {
	endpoints := endpointsOf(subset([]string{"http:80"}, "10.0.0.1"))
	store := newCluster()
	store.sync(t, endpoints, standard())
	endpoints.DeletionTimestamp = &metav1.Time{}
	endpoints.Subsets = []corev1.EndpointSubset{subset([]string{"http:80"}, "10.0.0.2"), subset([]string{"admin:90"}, "10.0.0.1", "fd00::1")}
	plan := store.sync(t, endpoints, standard())
	if diff := gocmp.Diff([]string{"IPv4 [http 80/TCP] 10.0.0.2"}, texts(store.list())); diff != "" {
		t.Errorf("after %v, slices (-want +got):\n%s", verbs(plan), diff)
	}
}

func TestClearMirrored_DeletesAllButTerminatingSlices(t *testing.T) {
	store := newCluster()
	store.sync(t, endpointsOf(subset([]string{"http:80"}, "10.0.0.1", "fd00::1")), standard())
	held := edited(store.list()[0], deleted)
	foreign := edited(store.list()[1], func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil })
	store = newCluster(held, foreign)
	plan := pack.ClearMirrored(store.list())
	if diff := gocmp.Diff([]string{"delete NOT_MIRRORED"}, verbs(plan)); diff != "" {
		t.Fatalf("writes (-want +got):\n%s", diff)
	}
	store.write(t, plan.Changes[0])
	if store.list()[0] != held {
		t.Errorf("slices %v stay, want the one that is being deleted", texts(store.list()))
	}
}

// Names of new slices derive from the UID of the Endpoints object: two writers choose the same, and
// a taken name is avoided.
func TestNames_AreDeterministic(t *testing.T) {
	names := func(change func(*pack.Input)) string {
		in := input(endpointsOf(subset([]string{"http:80"}, "10.0.0.1")), standard(), nil)
		change(&in)
		return pack.Make(in).Changes[0].Slice.Name
	}
	first := names(func(*pack.Input) {})
	if again := names(func(*pack.Input) {}); again != first {
		t.Errorf("names %s and %s of the same slice", first, again)
	}
	if taken := names(func(in *pack.Input) { in.SliceNames = []string{first} }); taken == first {
		t.Errorf("name %s is taken", taken)
	}
	recreated := with(endpointsOf(), func(endpoints *corev1.Endpoints) { endpoints.UID = "recreated" })
	if other := names(func(in *pack.Input) { in.Owner = mirror.Owner(recreated) }); other == first {
		t.Errorf("name %s is also that of an earlier Endpoints object", other)
	}
}

func TestFingerprint_DependsOnAnnotationsAndOwner(t *testing.T) {
	fingerprint := func(change func(*corev1.Endpoints)) string {
		endpoints := with(endpointsOf(subset([]string{"http:80"}, "10.0.0.1")), change)
		in := input(endpoints, standard(), nil)
		return pack.Make(in).Fingerprint(in.Owner)
	}
	base := fingerprint(func(*corev1.Endpoints) {})
	for name, change := range map[string]func(*corev1.Endpoints){
		"annotations": func(e *corev1.Endpoints) { e.Annotations = map[string]string{"a": "b"} },
		"labels":      func(e *corev1.Endpoints) { e.Labels = map[string]string{"a": "b"} },
		"owner":       func(e *corev1.Endpoints) { e.UID = "other" },
		"readiness": func(e *corev1.Endpoints) {
			e.Subsets = []corev1.EndpointSubset{subset([]string{"http:80"}, "!10.0.0.1")}
		},
	} {
		if fingerprint(change) == base {
			t.Errorf("%s: the fingerprint does not change", name)
		}
	}
	if trigger := fingerprint(func(e *corev1.Endpoints) {
		e.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "t"}
	}); trigger != base {
		t.Error("the trigger time changes the fingerprint")
	}
}

func TestExplain_TellsWhereAnAddressIs(t *testing.T) {
	http, admin := []string{"http:80"}, []string{"admin:90"}
	endpoints := endpointsOf(
		subset(http, "10.0.0.1", "10.0.0.2", "10.0.0.3", "web"),
		subset(admin, "!010.0.0.1", "10.0.0.3", "10.0.0.4"),
		subset(http, "!10.0.0.2"),
		subset(nil, "10.0.0.9", "010.0.0.9"),
	)
	limits := mirror.Limits{PerSubset: 2}
	for text, want := range map[string][]string{
		"10.0.0.1":        {"0 10.0.0.1 ready:true served:true ", "1 010.0.0.1 ready:false served:false OVER_LIMIT"},
		"::ffff:10.0.0.1": {"0 10.0.0.1 ready:true served:true ", "1 010.0.0.1 ready:false served:false OVER_LIMIT"},
		"10.0.0.2":        {"0 10.0.0.2 ready:true served:false OVER_LIMIT", "2 10.0.0.2 ready:false served:false OVER_LIMIT"},
		"10.0.0.3":        {"0 10.0.0.3 ready:true served:true ", "1 10.0.0.3 ready:true served:true "},
		"web":             {"0 web ready:true served:false OVER_LIMIT"},
		"10.0.0.9":        {"3 10.0.0.9 ready:true served:true ", "3 010.0.0.9 ready:true served:false DUPLICATE"},
		"10.0.0.7":        nil,
		"":                nil,
		"fd00::1":         nil,
	} {
		var got []string
		for _, origin := range mirror.Explain(endpoints, limits, text) {
			got = append(got, fmt.Sprintf("%d %s ready:%t served:%t %s", origin.Subset, origin.Address.IP, origin.Ready, origin.ServedReady, origin.Dropped))
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s: origins (-want +got):\n%s", text, diff)
		}
	}
	duplicates := endpointsOf(subset(http, "10.0.0.1", "10.0.0.1"))
	duplicates.Subsets[0].Addresses[1].TargetRef = &corev1.ObjectReference{UID: "u"}
	if got := mirror.Explain(duplicates, standard(), "10.0.0.1"); len(got) != 2 || got[0].Dropped != mirror.Duplicate || got[1].Dropped != "" {
		t.Errorf("origins %+v, want the one with the lesser UID as a duplicate", got)
	}
	if got := mirror.Explain(endpoints, standard(), "web"); len(got) != 1 || got[0].Dropped != mirror.InvalidAddress {
		t.Errorf("origins %+v, want an invalid address", got)
	}
}

// checkSlices fails unless the slices are what they should be: the endpoints of Resolve, each once,
// the owner, the labels and the annotations; in as few slices as the limit allows; and a second
// sync writes nothing.
func checkSlices(t rapid.TB, store *cluster, endpoints *corev1.Endpoints, limits mirror.Limits) {
	t.Helper()
	wanted := wantedSlices(endpoints, limits)
	got := map[string]map[string]int{}
	for _, slice := range store.live() {
		checkValid(t, slice)
		owned := false
		for _, owner := range slice.OwnerReferences {
			owned = owned || (owner.UID == endpoints.UID && owner.Kind == "Endpoints")
			if owner.Kind == "Endpoints" && owner.Name == endpoints.Name && owner.UID != endpoints.UID {
				t.Fatalf("slice %s keeps the earlier owner %s", slice.Name, owner.UID)
			}
		}
		if !owned {
			t.Fatalf("slice %s has the owners %v", slice.Name, slice.OwnerReferences)
		}
		labels := maps.Clone(endpoints.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[discoveryv1.LabelServiceName], labels[discoveryv1.LabelManagedBy] = endpoints.Name, mirror.ManagedBy
		if diff := gocmp.Diff(labels, slice.Labels); diff != "" {
			t.Fatalf("slice %s: labels (-want +got):\n%s", slice.Name, diff)
		}
		for key, value := range endpoints.Annotations {
			if reserved := key == corev1.EndpointsLastChangeTriggerTime || key == corev1.LastAppliedConfigAnnotation; !reserved && slice.Annotations[key] != value {
				t.Fatalf("slice %s lacks the annotation %s=%s: %v", slice.Name, key, value, slice.Annotations)
			}
		}
		group := groupOf(slice)
		if got[group] == nil {
			got[group] = map[string]int{"slices": 0}
		}
		got[group]["slices"]++
		for i := range slice.Endpoints {
			got[group][endpointText(&slice.Endpoints[i])]++
		}
	}
	if diff := gocmp.Diff(wanted, got); diff != "" {
		t.Fatalf("slices (-want +got):\n%s", diff)
	}
	if again := store.sync(t, endpoints, limits); !again.Empty() {
		t.Fatalf("21: the second sync writes %v", verbs(again))
	}
}
