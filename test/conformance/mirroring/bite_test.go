package mirroring

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// rightSlice is a mirrored slice as both controllers make it.
func rightSlice() discoveryv1.EndpointSlice {
	controller, ready := true, true
	name, number, protocol := "http", int32(80), corev1.ProtocolTCP
	return discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-x", UID: "uid-slice", Annotations: map[string]string{"x": "1", foreignKey + "0": "kept"}, Finalizers: []string{foreignPin},
			Labels:          map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: mirrorManager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Endpoints", Name: "web", UID: "uid-web", Controller: &controller}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &number, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
			{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
		},
	}
}

// spoils are ways in which a slice can be wrong.
var spoils = map[string]func(*discoveryv1.EndpointSlice){
	"address":          func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Addresses[0] = "10.1.0.3" },
	"missing endpoint": func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] },
	"endpoint twice":   func(s *discoveryv1.EndpointSlice) { s.Endpoints[1] = s.Endpoints[0] },
	"readiness":        func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(bool) },
	"serving":          func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Serving = new(bool) },
	"node": func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].NodeName = new(string)
		*s.Endpoints[0].NodeName = "n"
	},
	"target":          func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef = &corev1.ObjectReference{Name: "p"} },
	"port":            func(s *discoveryv1.EndpointSlice) { *s.Ports[0].Port = 81 },
	"no name of port": func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = nil },
	"label":           func(s *discoveryv1.EndpointSlice) { s.Labels["further"] = "label" },
	"annotation":      func(s *discoveryv1.EndpointSlice) { delete(s.Annotations, "x") },
	"owner":           func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "uid-other" },
	"no controller":   func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].Controller = nil },
	"family":          func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 },
	"deletion":        func(s *discoveryv1.EndpointSlice) { now := metav1.Now(); s.DeletionTimestamp = &now },
}

func webEndpoints(subsets ...corev1.EndpointSubset) map[string]*corev1.Endpoints {
	e := endpointsOf("web", subsets...)
	e.UID = "uid-web"
	return map[string]*corev1.Endpoints{"web": e}
}

// A case and a history find each spoiled slice.
func TestSpoiledSlicesAreFound(t *testing.T) {
	endpoints := webEndpoints(subset(http80, addresses("10.1.0.1", "10.1.0.2")))
	want := snapshot{endpoints: endpoints, slices: []discoveryv1.EndpointSlice{rightSlice()}}
	observed := func(slice discoveryv1.EndpointSlice) observation {
		return observation{slices: map[string]map[string]string{titleOf(&slice): fieldsOf(&slice, map[types.UID]string{"uid-web": "web"})}}
	}
	if problems := check(want, want, newLedger()); len(problems) > 0 {
		t.Errorf("of right slices: %q", problems)
	}
	if found := compare("step", observed(rightSlice()), observed(rightSlice())); len(found) > 0 {
		t.Errorf("of right slices: %v", found)
	}
	for name, spoil := range spoils {
		slice := rightSlice()
		spoil(&slice)
		if problems := check(want, snapshot{endpoints: endpoints, slices: []discoveryv1.EndpointSlice{slice}}, newLedger()); len(problems) == 0 {
			t.Errorf("a history does not find: %s", name)
		}
		if found := compare("step", observed(rightSlice()), observed(slice)); len(found) == 0 {
			t.Errorf("a case does not find: %s", name)
		}
	}
	if problems := check(want, snapshot{endpoints: endpoints, slices: []discoveryv1.EndpointSlice{rightSlice(), rightSlice()}}, newLedger()); len(problems) == 0 {
		t.Error("a history does not find a repeated slice")
	}
	if problems := check(want, snapshot{endpoints: endpoints}, newLedger()); len(problems) == 0 {
		t.Error("a history does not find a missing slice")
	}
}

// A history finds what another writer has lost.
func TestLostForeignEditsAreFound(t *testing.T) {
	kept := newLedger()
	slice := rightSlice()
	slice.ResourceVersion = "7"
	kept.annotated(slice.UID, foreignKey+"0")
	kept.pinned(slice.UID)
	kept.released(&slice)
	if problems := kept.check([]discoveryv1.EndpointSlice{slice}); len(problems) > 0 {
		t.Errorf("nothing is lost: %q", problems)
	}
	for name, lose := range map[string]func(*discoveryv1.EndpointSlice){
		"annotation": func(s *discoveryv1.EndpointSlice) { delete(s.Annotations, foreignKey+"0") },
		"finalizer":  func(s *discoveryv1.EndpointSlice) { s.Finalizers = nil },
		"write":      func(s *discoveryv1.EndpointSlice) { s.ResourceVersion = "8" },
		"deletion":   func(s *discoveryv1.EndpointSlice) { s.UID = "uid-other" },
	} {
		lost := *slice.DeepCopy()
		lose(&lost)
		if problems := kept.check([]discoveryv1.EndpointSlice{lost}); len(problems) != 1 {
			t.Errorf("%s: %q, want one problem", name, problems)
		}
	}
}

// Where a promise packs ports otherwise, each pair of address and port is in exactly one slice.
func TestPairsAreChecked(t *testing.T) {
	endpoints := webEndpoints(subset([]corev1.EndpointPort{port("http", 80), port("http", 8080)}, addresses("10.1.0.1", "10.1.0.2")))["web"]
	if !packedOtherwise(endpoints) {
		t.Fatal("two ports of one name are not noticed")
	}
	first, second := rightSlice(), rightSlice()
	number := int32(8080)
	second.Ports[0].Port = &number
	if problems := checkPairs("web", endpoints, []*discoveryv1.EndpointSlice{&first, &second}); len(problems) > 0 {
		t.Errorf("of right slices: %q", problems)
	}
	both := rightSlice()
	both.Ports = append(both.Ports, second.Ports...)
	less := *second.DeepCopy()
	less.Endpoints = less.Endpoints[:1]
	more := *second.DeepCopy()
	more.Endpoints[0].Addresses = []string{"10.1.0.9"}
	for name, all := range map[string][]*discoveryv1.EndpointSlice{
		"one slice has both": {&both}, "one is missing": {&first}, "one is there twice": {&first, &second, &second},
		"one endpoint is missing": {&first, &less}, "one endpoint is wrong": {&first, &more},
	} {
		if problems := checkPairs("web", endpoints, all); len(problems) == 0 {
			t.Errorf("not found: %s", name)
		}
	}
}

// An allowance covers what it describes and nothing else.
func TestAllowancesCoverWhatTheyDescribe(t *testing.T) {
	a := allowance{step: "made*", field: "web * endpoints", upstream: none, ours: "10.* ready", promise: 7, because: "test"}
	fits := difference{step: "made by us", field: "web IPv4 [] endpoints", ours: "10.1 ready"}
	if j := judge([]difference{fits}, []allowance{a}); len(j.unexplained) > 0 || !j.used[0] || !strings.Contains(j.explained[0], "promise 7") {
		t.Errorf("%+v, want that the allowance is used", j)
	}
	for name, other := range map[string]difference{
		"step":     {step: "then made", field: fits.field, ours: fits.ours},
		"field":    {step: fits.step, field: "web IPv4 [] labels", ours: fits.ours},
		"upstream": {step: fits.step, field: fits.field, ours: fits.ours, upstream: "10.2"},
		"ours":     {step: fits.step, field: fits.field, ours: "10.1 not"},
	} {
		if j := judge([]difference{other}, []allowance{a}); len(j.unexplained) != 1 || j.used[0] {
			t.Errorf("%s: %+v, want that the allowance is not used", name, j)
		}
	}
	if left := unused([]allowance{a, {sometimes: true}}, nil); len(left) != 1 || left[0] != a {
		t.Errorf("unused allowances are %v, want the first one", left)
	}
}

// Writes are counted by what they did, and not those of the test.
func TestWritesAreCounted(t *testing.T) {
	log := &auditLog{versions: map[string]string{}}
	add := func(verb, agent, name, version string, code int) {
		event := auditEvent{Verb: verb, UserAgent: agent, StageTimestamp: time.Now()}
		event.ObjectRef.Name, event.ResponseStatus.Code = name, code
		event.ResponseObject.Metadata.Name, event.ResponseObject.Metadata.ResourceVersion = name, version
		log.take(event)
	}
	add("create", "trivet/1", "", "1", 201)
	add("create", "trivet/1", "a", "1", 201)
	add("update", "trivet/1", "a", "2", 200)
	add("update", "trivet/1", "a", "2", 200)
	add("update", testAgent+"/1", "a", "3", 200)
	add("update", "trivet/1", "a", "3", 200)
	add("update", "trivet/1", "a", "", 409)
	add("delete", "trivet/1", "a", "", 200)
	const want = "create 2, delete 1, update 1, update without a change 2, refused: update 409"
	if got := summary(log.all); got != want {
		t.Errorf("writes are %q, want %q", got, want)
	}
}
