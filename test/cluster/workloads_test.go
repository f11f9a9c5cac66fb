package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	webReplicas = 4
	// sliceBound limits the time between a Pod's change and its slice's, on a loaded machine.
	sliceBound   = 3 * time.Second
	rolloutLimit = 3 * time.Minute
)

// TestWorkloads_SlicesFollowPods flips the readiness of Pods and replaces all of them. Throughout,
// slices follow within a bound.
func TestWorkloads_SlicesFollowPods(t *testing.T) {
	f := sharedCluster(t)
	namespace := f.namespace(t, "workloads")
	h := watchAll(t, f.kube, namespace)
	began := time.Now()
	f.deploy(t, namespace)
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })
	t.Log("the Deployment is up")

	flipped := objects[*corev1.Pod](h)[:2]
	for _, path := range []string{"/unready", "/ready"} {
		want := webReplicas
		if path == "/unready" {
			want -= len(flipped)
		}
		for _, pod := range flipped {
			if _, err := f.get(t.Context(), "cp1", http.MethodPost, "http://"+pod.Status.PodIP+":8080"+path); err != nil {
				t.Fatal(err)
			}
		}
		h.await(t, time.Minute, func() error { return atRest(h, want) })
	}
	flips := time.Now()
	t.Log("readiness went and came back")

	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`)
	if _, err := f.kube.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h.await(t, rolloutLimit, func() error {
		for _, pod := range objects[*corev1.Pod](h) {
			if pod.Annotations["version"] != "2" {
				return fmt.Errorf("Pod %s is of the old version", pod.Name)
			}
		}
		return atRest(h, webReplicas)
	})
	for _, phase := range []struct {
		name        string
		from, until time.Time
	}{{"start and readiness flips", began, flips}, {"rollout", flips, time.Now()}} {
		lags := sliceLags(h.since(began), phase.from, phase.until)
		figure(t, "Pod unready or deleted, ready in slices ("+phase.name+")", lags.stale.String(), "each ≤ "+sliceBound.String())
		figure(t, "Pod ready, not in slices ("+phase.name+")", lags.missing.String(), "each ≤ "+sliceBound.String())
		for _, l := range []lagList{lags.stale, lags.missing} {
			if len(l) == 0 {
				t.Errorf("%s: no lag was seen, so no Pod was", phase.name)
			} else if worst := slices.Max(l); worst > sliceBound {
				t.Errorf("%s: slices follow Pods after %v, want %v at most", phase.name, worst, sliceBound)
			}
		}
	}
}

// deploy creates the Deployment web, spread over the workers, and its Service. Its Pods leave a
// lost node after two seconds.
func (f *fixture) deploy(t *testing.T, namespace string) {
	t.Helper()
	labels, replicas, grace, tolerated := map[string]string{"app": "web"}, int32(webReplicas), int64(1), int64(2)
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			TopologyKey: corev1.LabelHostname, MaxSkew: 1, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
		}},
		Containers: []corev1.Container{{
			Name: "web", Image: webImage, ImagePullPolicy: corev1.PullNever,
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)}},
				PeriodSeconds: 1, FailureThreshold: 2, TimeoutSeconds: 5,
			},
		}},
	}
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &tolerated,
		})
	}
	_, err := f.kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.kube.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// atRest returns nil if that many Pods are ready, no Pod is going, and the slices have exactly the
// ready Pods as ready endpoints, each once.
func atRest(h *history, ready int) error {
	want, got := map[types.UID]int{}, map[types.UID]int{}
	for _, pod := range objects[*corev1.Pod](h) {
		if pod.DeletionTimestamp != nil {
			return fmt.Errorf("Pod %s is being deleted", pod.Name)
		}
		if podIsReady(pod) {
			want[pod.UID] = 1
		}
	}
	if len(want) != ready {
		return fmt.Errorf("%d Pods are ready, want %d", len(want), ready)
	}
	for _, slice := range objects[*discoveryv1.EndpointSlice](h) {
		for uid := range readyEndpoints(slice) {
			got[uid]++
		}
	}
	for uid, times := range got {
		if want[uid] != times {
			return fmt.Errorf("Pod %s is %d times ready in slices, want %d", uid, times, want[uid])
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d Pods are ready in slices, want %d", len(got), len(want))
	}
	return nil
}

func podIsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// readyEndpoints returns the Pods that are ready in a slice.
func readyEndpoints(slice *discoveryv1.EndpointSlice) map[types.UID]bool {
	found := map[types.UID]bool{}
	for _, endpoint := range slice.Endpoints {
		if endpoint.TargetRef != nil && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) {
			found[endpoint.TargetRef.UID] = true
		}
	}
	return found
}

// lags are the times in which a Pod and the slices disagreed: stale while a Pod is ready in slices
// that is gone, being deleted or unready; missing while a ready Pod is not ready in slices.
type lags struct{ stale, missing lagList }

type lagList []time.Duration

// String is the number, the median and the maximum.
func (l lagList) String() string {
	if len(l) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(l))
	return fmt.Sprintf("%d times, p50 %s, max %s", len(l), milliseconds(sorted[len(sorted)/2]), milliseconds(sorted[len(sorted)-1]))
}

// sliceLags replays a history until a time, and returns the disagreements that ended, or still
// were, after from.
func sliceLags(all []change, from, until time.Time) lags {
	pods := map[types.UID]bool{} // ready and not being deleted
	bySlice := map[string]map[types.UID]bool{}
	staleSince, missingSince := map[types.UID]time.Time{}, map[types.UID]time.Time{}
	var found lags
	follow := func(since map[types.UID]time.Time, uid types.UID, disagree bool, at time.Time, into *lagList) {
		begin, open := since[uid]
		switch {
		case disagree && !open:
			since[uid] = at
		case !disagree && open:
			delete(since, uid)
			if !at.Before(from) {
				*into = append(*into, at.Sub(begin))
			}
		}
	}
	seen := map[types.UID]bool{}
	for _, c := range all {
		if c.at.After(until) {
			break
		}
		switch object := c.object.(type) {
		case *corev1.Pod:
			pods[object.UID] = !c.deleted && object.DeletionTimestamp == nil && podIsReady(object)
			seen[object.UID] = true
		case *discoveryv1.EndpointSlice:
			bySlice[object.Name] = nil
			if !c.deleted {
				bySlice[object.Name] = readyEndpoints(object)
			}
			for uid := range bySlice[object.Name] {
				seen[uid] = true
			}
		default:
			continue
		}
		for uid := range seen {
			inSlices := false
			for _, endpoints := range bySlice {
				inSlices = inSlices || endpoints[uid]
			}
			follow(staleSince, uid, inSlices && !pods[uid], c.at, &found.stale)
			follow(missingSince, uid, !inSlices && pods[uid], c.at, &found.missing)
		}
	}
	for _, begin := range staleSince {
		found.stale = append(found.stale, until.Sub(begin))
	}
	for _, begin := range missingSince {
		found.missing = append(found.missing, until.Sub(begin))
	}
	return found
}

// The oracle sees an endpoint that stays and one that never comes.
func TestSliceLags_MeasuresDisagreement(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	pod := func(seconds int, uid types.UID, status corev1.ConditionStatus) change {
		return change{at: at(seconds), object: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
		}}
	}
	slice := func(seconds int, uids ...types.UID) change {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
		for _, uid := range uids {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{TargetRef: &corev1.ObjectReference{UID: uid}})
		}
		return change{at: at(seconds), object: s}
	}
	gone := pod(20, "a", corev1.ConditionTrue)
	gone.deleted = true
	got := sliceLags([]change{
		pod(0, "a", corev1.ConditionTrue), slice(1, "a"),
		pod(10, "b", corev1.ConditionTrue), gone,
	}, at(0), at(30))
	slices.Sort(got.missing)
	if want := (lagList{1 * time.Second, 20 * time.Second}); !slices.Equal(got.missing, want) {
		t.Errorf("missing for %v, want %v", got.missing, want)
	}
	if want := (lagList{10 * time.Second}); !slices.Equal(got.stale, want) {
		t.Errorf("stale for %v, want %v", got.stale, want)
	}
}

// TestWorkloads_HandMadeEndpointsAreMirrored writes Endpoints of a Service without a selector.
func TestWorkloads_HandMadeEndpointsAreMirrored(t *testing.T) {
	f := sharedCluster(t)
	namespace := f.namespace(t, "mirrored")
	h := watchAll(t, f.kube, namespace)
	f.deploy(t, namespace)
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })

	const name = "by-hand"
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	if _, err := f.kube.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}, Subsets: []corev1.EndpointSubset{{
		Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}},
	}}}
	subset := &endpoints.Subsets[0]
	for _, pod := range objects[*corev1.Pod](h) {
		// kube-apiserver's proxy skips an address that refers to no Pod of the namespace.
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{
			IP: pod.Status.PodIP, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID},
		})
	}
	written := time.Now()
	endpoints, err := f.kube.CoreV1().Endpoints(namespace).Create(t.Context(), endpoints, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, count int) {
		t.Helper()
		at := h.await(t, time.Minute, func() error { return mirrored(h, name, count) })
		figure(t, "Endpoints by hand "+what+", mirrored", milliseconds(at.Sub(written)), "≤ "+sliceBound.String())
		if at.Sub(written) > sliceBound {
			t.Errorf("Endpoints %s are mirrored after %v, want %v at most", what, at.Sub(written), sliceBound)
		}
	}
	expect("created", webReplicas)
	for _, node := range []string{stayingNode, otherNode} {
		f.checkProxied(t, node, h, name)
	}
	endpoints.Subsets[0].Addresses = endpoints.Subsets[0].Addresses[1:]
	written = time.Now()
	if _, err := f.kube.CoreV1().Endpoints(namespace).Update(t.Context(), endpoints, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("changed", webReplicas-1)
	written = time.Now()
	if err := f.kube.CoreV1().Endpoints(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("deleted", 0)
	if err := atRest(h, webReplicas); err != nil {
		t.Errorf("the slices of the Service with a selector: %v", err)
	}
}

// checkProxied calls a Service through the proxy of a kube-apiserver, which knows EndpointSlices
// only, until each Pod has answered.
func (f *fixture) checkProxied(t *testing.T, apiServer string, h *history, service string) {
	t.Helper()
	kube, err := f.Client(f.node(t, apiServer))
	if err != nil {
		t.Fatal(err)
	}
	missing, namespace := map[string]bool{}, ""
	for _, pod := range objects[*corev1.Pod](h) {
		missing[pod.Name], namespace = true, pod.Namespace
	}
	began := time.Now()
	mustEventually(t, time.Minute, func(ctx context.Context) error {
		answer, err := kube.CoreV1().Services(namespace).ProxyGet("http", service, "http", "/name", nil).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("through the kube-apiserver of %s: %w", apiServer, err)
		}
		delete(missing, strings.TrimSpace(string(answer)))
		if len(missing) > 0 {
			return fmt.Errorf("through the kube-apiserver of %s: %q answers, not yet: %v", apiServer, answer, missing)
		}
		return nil
	})
	figure(t, "all Pods answer through the proxy of "+apiServer, milliseconds(time.Since(began)), "≤ 1m")
}

// mirrored returns an error unless the slices of a Service have so many endpoints, all of them
// mirrored.
func mirrored(h *history, service string, want int) error {
	got := 0
	for _, slice := range objects[*discoveryv1.EndpointSlice](h) {
		if slice.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		if manager := slice.Labels[discoveryv1.LabelManagedBy]; manager != "endpointslicemirroring-controller.k8s.io" {
			return fmt.Errorf("slice %s is managed by %q", slice.Name, manager)
		}
		got += len(slice.Endpoints)
	}
	if got != want {
		return fmt.Errorf("%d endpoints of %s are mirrored, want %d", got, service, want)
	}
	return nil
}

// TestWorkloads_KubeletBehindTheEndpoint uses logs, exec and registration of the node whose kubelet
// knows the agent's endpoint only.
func TestWorkloads_KubeletBehindTheEndpoint(t *testing.T) {
	f := sharedCluster(t)
	namespace := f.namespace(t, "behind")
	h := watchAll(t, f.kube, namespace)
	f.deploy(t, namespace)
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })
	var pod *corev1.Pod
	for _, p := range objects[*corev1.Pod](h) {
		if p.Spec.NodeName == endpointNode {
			pod = p
		}
	}
	if pod == nil {
		t.Fatalf("no Pod runs on %s", endpointNode)
	}
	text, err := f.kube.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err != nil || !strings.Contains(string(text), "listening on") {
		t.Errorf("logs: %q, %v", text, err)
	}
	output, err := f.exec(t.Context(), pod, "/web", "hello", "from", "the", "container")
	if err != nil || output != "hello from the container\n" {
		t.Errorf("exec: %q, %v", output, err)
	}

	node := f.node(t, endpointNode)
	before := nodeOf(h, endpointNode).UID
	passed := func(verb, resource string) float64 {
		value, err := f.metric(t.Context(), endpointNode, "trivet_agent_endpoint_requests_total", `verb="`+verb+`"`, `resource="`+resource+`"`)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	created, patched := passed("create", "nodes"), passed("patch", "nodes")
	deleted := time.Now()
	err = errors.Join(
		f.kube.CoreV1().Nodes().Delete(t.Context(), endpointNode, metav1.DeleteOptions{}), node.RestartKubelet())
	if err != nil {
		t.Fatal(err)
	}
	back := h.await(t, 2*time.Minute, func() error {
		found := nodeOf(h, endpointNode)
		if found == nil || found.UID == before || readyCondition(found).Status != corev1.ConditionTrue {
			return errors.New("the node has not registered and become ready")
		}
		return nil
	})
	figure(t, "Node deleted, registered and ready through the endpoint", milliseconds(back.Sub(deleted)), "≤ 2m")
	mustEventually(t, time.Minute, func(context.Context) error {
		if passed("create", "nodes") <= created || passed("patch", "nodes") <= patched {
			return fmt.Errorf("requests for nodes through the endpoint: %v created, %v patched, before %v and %v",
				passed("create", "nodes"), passed("patch", "nodes"), created, patched)
		}
		return nil
	})
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })
}
