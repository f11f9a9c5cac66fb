package mirroring

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

const (
	// restTime is longer than the first backoff of both controllers, 1 s.
	restTime = 1300 * time.Millisecond
	// agreeTime is how long two sides at rest may differ: a failed write is tried again.
	agreeTime = 12 * time.Second
)

// scenario is one case of the specification.
type scenario struct {
	number int
	name   string
	// alone says that the case stops and starts controllers. Then no other case runs.
	alone bool
	run   func(*script)
	// allowances are the intended differences. One that no difference needs fails the case.
	allowances []allowance
}

// script runs a case on all sides, in a namespace of its own.
type script struct {
	t         *testing.T
	sides     []*side
	namespace string
	scenario  scenario
	memories  []*memory
	used      map[int]bool
	begun     time.Time // of the current step
}

func runScenario(t *testing.T, sides []*side, c scenario) {
	s := &script{t: t, sides: sides, namespace: strings.ReplaceAll(fmt.Sprintf("case-%02d-%s", c.number, c.name), "_", "-"), scenario: c, used: map[int]bool{}}
	for _, on := range sides {
		s.memories = append(s.memories, &memory{firstSeen: map[types.UID]string{}})
		if err := on.makeNamespace(t.Context(), s.namespace); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.clear() })
	c.run(s)
	if t.Failed() || len(sides) < 2 {
		return
	}
	for _, a := range unused(c.allowances, s.used) {
		t.Errorf("no difference needs the allowance: %v", a)
	}
}

// clear removes what is mirrored, so that the controllers rest for the cases that follow.
func (s *script) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, on := range s.sides {
		pinned, err := on.kube.CoreV1().Endpoints(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			s.t.Error(err)
			continue
		}
		for _, e := range pinned.Items {
			if len(e.Finalizers) > 0 {
				_, err = on.kube.CoreV1().Endpoints(s.namespace).Patch(ctx, e.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				if err != nil {
					s.t.Error(err)
				}
			}
		}
		if err := on.kube.CoreV1().Endpoints(s.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			s.t.Error(err)
		}
	}
}

// each does something on each side, in a scene of the namespace of the case.
func (s *script) each(do func(*scene)) {
	s.begun = time.Now()
	for _, on := range s.sides {
		do(&scene{t: s.t, side: on, namespace: s.namespace})
	}
}

// step does something on each side, and compares what comes of it.
func (s *script) step(name string, do func(*scene)) {
	s.t.Helper()
	s.each(do)
	for _, on := range s.sides {
		on.awaitController(s.t, s.namespace)
	}
	restless, differing := time.Now().Add(patience), time.Time{}
	for {
		seen, err := s.observe(name)
		if err != nil {
			s.t.Fatalf("%s: %v", name, err)
		}
		if idle := s.idle(); !idle && time.Now().Before(restless) {
			time.Sleep(restTime / 10)
			continue
		} else if !idle {
			s.t.Fatalf("%s: writes go on:\n%v", name, seen)
		}
		if differing.IsZero() {
			differing = time.Now()
		}
		if s.conclude(name, seen, time.Since(differing) > agreeTime) {
			break
		}
		time.Sleep(restTime / 4)
	}
	for i, on := range s.sides {
		if err := on.remember(s.t.Context(), s.namespace, name, s.memories[i]); err != nil {
			s.t.Fatal(err)
		}
	}
}

// conclude returns true if the sides agree, or if they do not and it is final.
func (s *script) conclude(name string, seen []observation, final bool) bool {
	s.t.Helper()
	if len(seen) < 2 {
		s.t.Logf("%s:\n%v", name, seen[0])
		return true
	}
	j := judge(compare(name, seen[0], seen[1]), slices.Concat(s.scenario.allowances, always))
	if len(j.unexplained) > 0 && !final {
		return false
	}
	for i := range j.used {
		s.used[i] = true
	}
	s.t.Logf("%s:\n%v%s", name, seen[0], strings.Join(j.explained, "\n"))
	for _, d := range j.unexplained {
		s.t.Error(d)
	}
	return true
}

func (s *script) observe(step string) ([]observation, error) {
	var all []observation
	for i, on := range s.sides {
		o, err := on.observe(s.t.Context(), s.namespace, step, s.begun, s.memories[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", on.name, err)
		}
		all = append(all, o)
	}
	return all, nil
}

// idle says whether no slice of the namespace was written for a while.
func (s *script) idle() bool {
	if time.Since(s.begun) < restTime {
		return false
	}
	for _, on := range s.sides {
		if writes, err := on.audit.in(s.namespace, time.Now().Add(-restTime)); err != nil || len(writes) > 0 {
			return false
		}
	}
	return true
}

// scene is one side during a step. Its methods fail the test.
type scene struct {
	*side
	t         *testing.T
	namespace string
}

func (s *scene) ctx() context.Context { return s.t.Context() }

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
}

// service makes a Service without a selector.
func (s *scene) service(name string, change ...func(*corev1.Service)) {
	s.t.Helper()
	made := service(name)
	for _, apply := range change {
		apply(made)
	}
	_, err := s.kube.CoreV1().Services(s.namespace).Create(s.ctx(), made, metav1.CreateOptions{})
	s.must(err)
}

func (s *scene) changeService(name string, change func(*corev1.Service)) {
	s.t.Helper()
	client := s.kube.CoreV1().Services(s.namespace)
	s.must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := client.Get(s.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(found)
		_, err = client.Update(s.ctx(), found, metav1.UpdateOptions{})
		return err
	}))
}

func (s *scene) deleteService(name string) {
	s.t.Helper()
	s.must(s.kube.CoreV1().Services(s.namespace).Delete(s.ctx(), name, metav1.DeleteOptions{}))
}

func (s *scene) endpoints(made *corev1.Endpoints) {
	s.t.Helper()
	_, err := s.kube.CoreV1().Endpoints(s.namespace).Create(s.ctx(), made, metav1.CreateOptions{})
	s.must(err)
}

// mirror makes a Service and its Endpoints object.
func (s *scene) mirror(name string, subsets ...corev1.EndpointSubset) {
	s.t.Helper()
	s.service(name)
	s.endpoints(endpointsOf(name, subsets...))
}

func (s *scene) change(name string, change func(*corev1.Endpoints)) {
	s.t.Helper()
	client := s.kube.CoreV1().Endpoints(s.namespace)
	s.must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := client.Get(s.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(found)
		_, err = client.Update(s.ctx(), found, metav1.UpdateOptions{})
		return err
	}))
}

// resubset gives an Endpoints object other subsets.
func (s *scene) resubset(name string, subsets ...corev1.EndpointSubset) {
	s.t.Helper()
	s.change(name, func(e *corev1.Endpoints) { e.Subsets = subsets })
}

// store writes an Endpoints object to etcd, where no validation refuses what older versions of
// kube-apiserver accepted. The object exists already.
func (s *scene) store(endpoints *corev1.Endpoints) {
	s.t.Helper()
	old, err := s.kube.CoreV1().Endpoints(s.namespace).Get(s.ctx(), endpoints.Name, metav1.GetOptions{})
	s.must(err)
	old.Subsets, old.ManagedFields, old.ResourceVersion = endpoints.Subsets, nil, ""
	old.APIVersion, old.Kind = "v1", "Endpoints"
	text, err := json.Marshal(old)
	s.must(err)
	etcd, err := s.cluster.EtcdClient()
	s.must(err)
	defer etcd.Close()
	_, err = etcd.Put(s.ctx(), "/registry/services/endpoints/"+s.namespace+"/"+old.Name, string(text))
	s.must(err)
}

func (s *scene) deleteEndpoints(name string) {
	s.t.Helper()
	s.must(s.kube.CoreV1().Endpoints(s.namespace).Delete(s.ctx(), name, metav1.DeleteOptions{}))
}

// one returns the only mirrored slice of a Service.
func (s *scene) one(name string) *discoveryv1.EndpointSlice {
	s.t.Helper()
	all, err := s.mirrored(s.ctx(), s.namespace, name)
	s.must(err)
	if len(all) != 1 {
		s.t.Fatalf("%s: %s has %d mirrored slices, want 1", s.name, name, len(all))
	}
	return &all[0]
}

// edit changes the only mirrored slice of a Service, as another writer. Its endpoints are in order.
func (s *scene) edit(name string, change func(*discoveryv1.EndpointSlice)) {
	s.t.Helper()
	s.editSlice(s.one(name).Name, change)
}

func (s *scene) editSlice(slice string, change func(*discoveryv1.EndpointSlice)) {
	s.t.Helper()
	client := s.kube.DiscoveryV1().EndpointSlices(s.namespace)
	s.must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := client.Get(s.ctx(), slice, metav1.GetOptions{})
		if err != nil {
			return err
		}
		slices.SortFunc(found.Endpoints, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.Addresses[0], b.Addresses[0]) })
		change(found)
		_, err = client.Update(s.ctx(), found, metav1.UpdateOptions{})
		return err
	}))
}

func (s *scene) makeSlice(made *discoveryv1.EndpointSlice) {
	s.t.Helper()
	_, err := s.kube.DiscoveryV1().EndpointSlices(s.namespace).Create(s.ctx(), made, metav1.CreateOptions{})
	s.must(err)
}

func (s *scene) deleteSlice(name string) {
	s.t.Helper()
	err := s.kube.DiscoveryV1().EndpointSlices(s.namespace).Delete(s.ctx(), name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		s.must(err)
	}
}

// unpin removes the finalizers of all slices.
func (s *scene) unpin() {
	s.t.Helper()
	list, err := s.kube.DiscoveryV1().EndpointSlices(s.namespace).List(s.ctx(), metav1.ListOptions{})
	s.must(err)
	for _, slice := range list.Items {
		if len(slice.Finalizers) > 0 {
			_, err := s.kube.DiscoveryV1().EndpointSlices(s.namespace).Patch(s.ctx(), slice.Name, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if !apierrors.IsNotFound(err) {
				s.must(err)
			}
		}
	}
}
