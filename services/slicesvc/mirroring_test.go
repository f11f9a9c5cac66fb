package slicesvc_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// mirrorFixture is a namespace of a real cluster with a slicesvc that mirrors Endpoints.
type mirrorFixture struct {
	*fixture
	warnings *warnings
	replica  *slicesvc.Service
}

// warnings collects the warnings of kube-apiserver for the clients of slicesvc.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warnings) about(word string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.all), func(text string) bool { return !strings.Contains(text, word) })
}

func newMirrorFixture(t *testing.T, changes ...func(*slicesvc.Config)) *mirrorFixture {
	t.Helper()
	config := testkit.Cluster(t).RESTConfig()
	quiet := rest.CopyConfig(config)
	quiet.WarningHandler = rest.NoWarnings{}
	clients, err := kubernetes.NewForConfig(quiet)
	if err != nil {
		t.Fatal(err)
	}
	f := &mirrorFixture{
		fixture:  &fixture{t: t, clients: clients, namespace: testkit.Namespace(t, clients)},
		warnings: &warnings{},
	}
	config.WarningHandler = f.warnings
	config.UserAgent = "trivet/test" // the field manager
	connected, err := slicesvc.Connect(kubeconn.Fence(testkit.ObjectsOf(config, f.namespace)))
	f.must(err)
	cfg := slicesvc.DefaultConfig()
	for _, change := range changes {
		change(&cfg)
	}
	f.candidate = termtest.NewCandidate(member(), cfg.Shards)
	deps := slicesvc.Deps{
		Member: member(), Kube: connected, Leadership: f.candidate,
		Logger:        slog.New(slog.NewTextHandler(t.Output(), nil)),
		Ready:         observe.NewChecks(),
		LoopSelection: []string{"*", slicesvc.MirrorLoopName},
	}
	f.replica, f.client, f.stop = runWith(t, cfg, deps)
	ready(t, deps)
	return f
}

// endpoints creates Endpoints web with one subset for each port.
func (f *mirrorFixture) endpoints(addresses map[int32][]string) *corev1.Endpoints {
	f.t.Helper()
	object := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Labels: map[string]string{"team": "shop"}, Annotations: map[string]string{"note": "mirrored"},
	}}
	setSubsets(object, addresses)
	created, err := f.clients.CoreV1().Endpoints(f.namespace).Create(f.ctx(), object, metav1.CreateOptions{})
	f.must(err)
	return created
}

func (f *mirrorFixture) updateEndpoints(change func(*corev1.Endpoints)) {
	f.t.Helper()
	client := f.clients.CoreV1().Endpoints(f.namespace)
	object, err := client.Get(f.ctx(), "web", metav1.GetOptions{})
	f.must(err)
	change(object)
	_, err = client.Update(f.ctx(), object, metav1.UpdateOptions{})
	f.must(err)
}

func setSubsets(object *corev1.Endpoints, addresses map[int32][]string) {
	object.Subsets = nil
	for port, all := range addresses {
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: fmt.Sprint("p", port), Port: port, Protocol: corev1.ProtocolTCP}}}
		for _, address := range all {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: address})
		}
		object.Subsets = append(object.Subsets, subset)
	}
}

func withoutSelector(service *corev1.Service) { service.Spec.Selector = nil }

// slicesOf lists the slices of Service web with a managed-by label.
func (f *mirrorFixture) slicesOf(manager string) []discoveryv1.EndpointSlice {
	f.t.Helper()
	list, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=web," + discoveryv1.LabelManagedBy + "=" + manager,
	})
	f.must(err)
	return list.Items
}

// expectMirrors waits until the mirrored slices have these addresses, one line for each slice.
func (f *mirrorFixture) expectMirrors(want ...string) []discoveryv1.EndpointSlice {
	f.t.Helper()
	var found []discoveryv1.EndpointSlice
	testkit.Eventually(f.t, testTimeout, func() error {
		found = f.slicesOf(mirror.ManagedBy)
		var got []string
		for i := range found {
			line := fmt.Sprint(*found[i].Ports[0].Port)
			for _, endpoint := range found[i].Endpoints {
				line += " " + endpoint.Addresses[0]
			}
			got = append(got, line)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("mirrored slices are %q, want %q", got, want)
		}
		return nil
	})
	return found
}

func TestMirroring_FollowsEndpoints(t *testing.T) {
	t.Parallel()
	f := newMirrorFixture(t)
	f.service(withoutSelector)
	owner := f.endpoints(map[int32][]string{8080: {"10.1.0.1"}})
	slice := f.expectMirrors("8080 10.1.0.1")[0]
	if len(slice.OwnerReferences) != 1 || slice.OwnerReferences[0].Kind != "Endpoints" || slice.OwnerReferences[0].UID != owner.UID {
		t.Errorf("owners are %v", slice.OwnerReferences)
	}
	if slice.Labels["team"] != "shop" || slice.Annotations["note"] != "mirrored" {
		t.Errorf("labels are %v, annotations %v", slice.Labels, slice.Annotations)
	}
	f.updateEndpoints(func(object *corev1.Endpoints) {
		object.Subsets[0].Addresses = append(object.Subsets[0].Addresses, corev1.EndpointAddress{IP: "10.1.0.2"})
	})
	if again := f.expectMirrors("8080 10.1.0.1 10.1.0.2")[0]; again.UID != slice.UID {
		t.Error("the slice was created again")
	}

	// Annotations that the object loses go, and those of others stay.
	client := f.clients.DiscoveryV1().EndpointSlices(f.namespace)
	current, err := client.Get(f.ctx(), slice.Name, metav1.GetOptions{})
	f.must(err)
	current.Annotations["foreign"] = "kept"
	_, err = client.Update(f.ctx(), current, metav1.UpdateOptions{FieldManager: "another-writer"})
	f.must(err)
	f.updateEndpoints(func(object *corev1.Endpoints) { object.Annotations = nil })
	testkit.Eventually(t, testTimeout, func() error {
		current, err := client.Get(f.ctx(), slice.Name, metav1.GetOptions{})
		if err == nil && (current.Annotations["foreign"] != "kept" || len(current.Annotations) != 1) {
			err = fmt.Errorf("annotations are %v, want that of the other writer", current.Annotations)
		}
		return err
	})

	f.must(client.Delete(f.ctx(), slice.Name, metav1.DeleteOptions{}))
	if again := f.expectMirrors("8080 10.1.0.1 10.1.0.2")[0]; again.UID == slice.UID {
		t.Error("the deleted slice is still there")
	}
	f.must(f.clients.CoreV1().Endpoints(f.namespace).Delete(f.ctx(), "web", metav1.DeleteOptions{}))
	f.expectMirrors()
	if about := f.warnings.about("Endpoints is deprecated"); len(about) != 0 {
		t.Errorf("warnings are not silenced: %q", about)
	}
}

// Promise 12 and case 20: a policy refuses one slice, then the namespace refuses creations.
func TestMirroring_RefusedSlices(t *testing.T) {
	t.Parallel()
	f := newMirrorFixture(t)
	f.service(withoutSelector)
	f.endpoints(map[int32][]string{8080: {"10.1.0.1"}})
	f.expectMirrors("8080 10.1.0.1")
	f.refusePort(9999)
	f.updateEndpoints(func(object *corev1.Endpoints) {
		setSubsets(object, map[int32][]string{8080: {"10.1.0.2"}, 9999: {"10.1.0.9"}, 7070: {"10.1.0.7"}})
	})
	f.expectMirrors("7070 10.1.0.7", "8080 10.1.0.2")
	f.updateEndpoints(func(object *corev1.Endpoints) {
		setSubsets(object, map[int32][]string{8080: {"10.1.0.3"}, 9999: {"10.1.0.9"}})
	})
	f.expectMirrors("8080 10.1.0.3")
	testkit.Eventually(t, testTimeout, func() error {
		for _, problem := range f.replica.Problems() {
			if strings.Contains(problem.Message, "9999") {
				return nil
			}
		}
		return fmt.Errorf("no problem names the refused port: %v", f.replica.Problems())
	})
	f.updateEndpoints(func(object *corev1.Endpoints) {
		setSubsets(object, map[int32][]string{8080: {"10.1.0.3"}, 6060: {"10.1.0.6"}})
	})
	f.expectMirrors("6060 10.1.0.6", "8080 10.1.0.3")
	f.must(f.clients.CoreV1().Namespaces().Delete(f.ctx(), f.namespace, metav1.DeleteOptions{}))
	f.updateEndpoints(func(object *corev1.Endpoints) {
		setSubsets(object, map[int32][]string{8080: {"10.1.0.4"}, 6060: {"10.1.0.6"}, 5050: {"10.1.0.5"}})
	})
	f.expectMirrors("6060 10.1.0.6", "8080 10.1.0.4")
}

// Annotations of another writer and those of the Endpoints object may be too large together for one
// slice. The slice follows the addresses nevertheless.
func TestMirroring_TooManyAnnotations(t *testing.T) {
	t.Parallel()
	f := newMirrorFixture(t)
	f.service(withoutSelector)
	f.endpoints(map[int32][]string{8080: {"10.1.0.1"}})
	slice := f.expectMirrors("8080 10.1.0.1")[0]
	_, err := f.patch(f.ctx(), &slice, `{"metadata":{"annotations":{"example.com/other":%q}}}`, strings.Repeat("x", 200<<10))
	f.must(err)
	f.updateEndpoints(func(object *corev1.Endpoints) {
		object.Annotations = map[string]string{"example.com/large": strings.Repeat("y", 100<<10)}
		setSubsets(object, map[int32][]string{8080: {"10.1.0.2"}})
	})
	written := f.expectMirrors("8080 10.1.0.2")[0]
	if _, mirrored := written.Annotations["example.com/large"]; !mirrored || written.UID != slice.UID {
		t.Errorf("the slice has %d annotations, want that of the Endpoints object", len(written.Annotations))
	}
}

// refusePort makes kube-apiserver refuse slices of the namespace with a port.
func (f *mirrorFixture) refusePort(port int32) {
	f.t.Helper()
	probe := probeSlice(discoveryv1.AddressTypeIPv4)
	probe.Ports = []discoveryv1.EndpointPort{{Port: &port}}
	f.refuseSlices(fmt.Sprintf("!object.ports.exists(p, p.port == %d)", port), fmt.Sprintf("port %d is refused", port), probe)
}

// Promise 10: when a selector goes, the slices of the Pods stay until the mirrored ones are
// written.
func TestMirroring_SelectorGoes(t *testing.T) {
	t.Parallel()
	f := newMirrorFixture(t, func(cfg *slicesvc.Config) { cfg.CleanUpSelectorless = true })
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	f.endpoints(map[int32][]string{9999: {"10.2.0.1"}})
	f.refusePort(9999)
	f.updateService(func(service *corev1.Service) { service.Spec.Selector = nil })
	testkit.Eventually(t, testTimeout, func() error {
		for _, problem := range f.replica.Problems() {
			if strings.Contains(problem.Message, "9999") {
				return nil
			}
		}
		return fmt.Errorf("no problem names the refused slice: %v", f.replica.Problems())
	})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS") // the mirrored slice is not there yet
	f.updateEndpoints(func(object *corev1.Endpoints) { setSubsets(object, map[int32][]string{8080: {"10.2.0.1"}}) })
	f.expectMirrors("8080 10.2.0.1")
	f.expect([]string{}...)

	f.updateService(func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "web"} })
	f.expectMirrors()
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
}

// While the loop is off, Endpoints are neither read nor watched.
func TestMirroring_OffReadsNoEndpoints(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		selection []string
		want      bool
	}{
		"default":  {selection: nil},
		"all":      {selection: []string{"*"}},
		"selected": {selection: []string{"*", slicesvc.MirrorLoopName}, want: true},
		"excluded": {selection: []string{"-" + slicesvc.MirrorLoopName, "*"}},
	} {
		t.Run(name, func(t *testing.T) {
			deps := fakeDeps(t,
				slicetest.Service("web", func(service *corev1.Service) { service.Spec.Selector = nil }),
				&corev1.Endpoints{
					ObjectMeta: metav1.ObjectMeta{Namespace: slicetest.Namespace, Name: "web", UID: "uid", ResourceVersion: "1"},
					Subsets: []corev1.EndpointSubset{{
						Addresses: []corev1.EndpointAddress{{IP: "10.1.0.1"}},
						Ports:     []corev1.EndpointPort{{Port: 80, Protocol: corev1.ProtocolTCP}},
					}},
				})
			deps.LoopSelection = c.selection
			_, _, stop := run(t, deps)
			ready(t, deps)
			if c.want {
				testkit.Eventually(t, 30*time.Second, func() error {
					if len(storedSlices(t, deps)) != 1 {
						return errors.New("the Endpoints are not mirrored")
					}
					return nil
				})
			}
			stop()
			read := false
			for _, action := range clientsetOf(deps).(*fake.Clientset).Actions() {
				read = read || action.GetResource().Resource == "endpoints"
			}
			if read != c.want {
				t.Errorf("Endpoints are read: %v, want %v", read, c.want)
			}
		})
	}
}
