package slicesvc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	trivetmeta "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/api"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func member() term.Member { return term.Member{ID: "slicesvc-1", Service: "slicesvc"} }

func fakeDeps(t *testing.T, objects ...runtime.Object) slicesvc.Deps {
	cluster := slicetest.Clientset{Interface: fake.NewClientset(objects...)}
	return slicesvc.Deps{
		Member:     member(),
		Kube:       kube.Clients{Objects: cluster, Slices: cluster, Events: cluster.Events()},
		Leadership: termtest.NewCandidate(member(), slicesvc.DefaultConfig().Shards),
		Logger:     slog.New(slog.NewTextHandler(t.Output(), nil)),
		Ready:      observe.NewChecks(),
	}
}

// clientsetOf returns the fake clientset of fakeDeps.
func clientsetOf(deps slicesvc.Deps) kubernetes.Interface {
	return deps.Kube.Objects.(slicetest.Clientset).Interface
}

// run runs a service until the test ends. It returns a client, and a function that stops the
// service.
func run(t *testing.T, deps slicesvc.Deps) (*slicesvc.Service, slicev1.SliceServiceClient, func()) {
	t.Helper()
	return runWith(t, slicesvc.DefaultConfig(), deps)
}

func runWith(t *testing.T, cfg slicesvc.Config, deps slicesvc.Deps) (*slicesvc.Service, slicev1.SliceServiceClient, func()) {
	t.Helper()
	service, err := slicesvc.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	returned := make(chan error, 1)
	go func() { returned <- service.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-returned; err != nil {
			t.Errorf("run: %v", err)
		}
	}
	t.Cleanup(stop)
	return service, slicev1.NewSliceServiceClient(testkit.Serve(t, service.Register)), stop
}

// ready waits until the caches are filled.
func ready(t *testing.T, deps slicesvc.Deps) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error { return errors.Join(deps.Ready.Failed()...) })
}

func TestGetServiceSlices_ReturnsTheSlices(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("web", func(service *corev1.Service) { service.ResourceVersion = "42" }),
		slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Pod("web-1", "10.1.0.2", slicetest.Unready),
		slicetest.Service("nothing", func(service *corev1.Service) { service.Spec.Selector = nil }),
		slicetest.Service("alias", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeExternalName }),
	)
	_, client, _ := run(t, deps)
	ready(t, deps)
	var answer *slicev1.GetServiceSlicesResponse
	testkit.Eventually(t, 30*time.Second, func() (err error) {
		answer, err = client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
		if err == nil && (len(answer.ServiceSlices.Slices) == 0 || lastSuccess(answer.ServiceSlices).IsZero()) {
			err = errors.New("no slices yet")
		}
		return err
	})
	port, number := int32(8080), int32(27)
	want := &slicev1.ServiceSlices{
		Name: "namespaces/shop/serviceslices/web",
		Uid:  "uid-of-web",
		Slices: []*slicev1.SliceSummary{{
			AddressType:        "IPv4",
			Ports:              []*slicev1.SliceSummary_Port{{Name: "http", Protocol: "TCP", Port: &port}},
			EndpointCount:      2,
			ReadyEndpointCount: 1,
			Capacity:           100,
			Source:             slicev1.SliceSource_SLICE_SOURCE_SELECTOR,
		}},
		EndpointCount:      2,
		ReadyEndpointCount: 1,
		IdealSliceCount:    1,
		Conditions: []*trivetmeta.Condition{{
			Type: "Managed", Status: trivetmeta.Condition_STATUS_TRUE, Reason: "SELECTOR",
			Message: "The Service has a selector, so slicesvc writes its slices.",
		}},
		Syncs: []*slicev1.ServiceSlices_Sync{{Source: slicev1.SliceSource_SLICE_SOURCE_SELECTOR}},
		Owner: &trivetmeta.Owner{ReplicaId: "slicesvc-1", Shard: &number, Epoch: answer.Sources[0].Epoch},
	}
	if last := answer.ServiceSlices.Syncs[0].LastPlan; last.GetTrigger() == "" || last.GetStartTime() == nil {
		t.Errorf("the last plan is %v, want a time and a trigger", last)
	}
	ignored := gocmp.Options{
		protocmp.Transform(),
		protocmp.IgnoreFields(&slicev1.ServiceSlices_Sync{}, "last_success_time", "last_plan"),
		protocmp.IgnoreFields(&slicev1.SliceSummary{}, "name", "resource_version", "write_time"),
	}
	if diff := gocmp.Diff(want, answer.ServiceSlices, ignored); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
	checkSource(t, answer.Sources, number)
	for name, want := range map[string]string{"nothing": "NO_SELECTOR", "alias": "EXTERNAL_NAME"} {
		answer, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: "namespaces/shop/serviceslices/" + name})
		if err != nil {
			t.Fatal(err)
		}
		got := answer.ServiceSlices
		managed := conditionOf(got, "Managed")
		if managed.GetStatus() != trivetmeta.Condition_STATUS_FALSE || managed.GetReason() != want || len(got.Slices)+len(got.Syncs) != 0 {
			t.Errorf("%s is %v, want unmanaged for %s, without slices and syncs", name, got, want)
		}
	}
}

// checkSource fails unless one replica answered for the shards, with a fresh cache of each kind.
func checkSource(t *testing.T, sources []*trivetmeta.Source, shards ...int32) {
	t.Helper()
	if len(sources) != 1 {
		t.Fatalf("%d sources, want one", len(sources))
	}
	source := sources[0]
	if source.Service != "slicesvc" || source.ReplicaId != "slicesvc-1" || source.ReadTime == nil || (source.Epoch != 0) != (len(shards) > 0) {
		t.Errorf("source is %v", source)
	}
	if diff := gocmp.Diff(shards, source.Shards); diff != "" {
		t.Errorf("shards (-want +got):\n%s", diff)
	}
	var kinds []string
	for _, cache := range source.Caches {
		kinds = append(kinds, cache.Kind)
		if cache.Lag == nil || cache.Lag.AsDuration() < 0 || cache.Lag.AsDuration() > time.Minute {
			t.Errorf("the lag of %s is %v", cache.Kind, cache.Lag)
		}
	}
	if diff := gocmp.Diff([]string{"EndpointSlice", "Node", "Pod", "Service"}, kinds); diff != "" {
		t.Errorf("caches (-want +got):\n%s", diff)
	}
}

// conditionOf returns a condition of a Service, nil if it has none of the type.
func conditionOf(service *slicev1.ServiceSlices, conditionType string) *trivetmeta.Condition {
	for _, condition := range service.GetConditions() {
		if condition.Type == conditionType {
			return condition
		}
	}
	return nil
}

// A replica that does not lead the shard knows the slices, and not the syncs.
func TestGetServiceSlices_OnlyTheLeaderHasSyncs(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("near", func(service *corev1.Service) {
			mode := corev1.ServiceTrafficDistributionPreferClose
			service.Spec.TrafficDistribution, service.Spec.Selector = &mode, map[string]string{"app": "web"}
		}),
	)
	_, client, _ := run(t, deps)
	ready(t, deps)
	get := func(name string, leader bool) (got *slicev1.ServiceSlices) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			answer, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: "namespaces/shop/serviceslices/" + name})
			got = answer.GetServiceSlices()
			if err == nil && (got.EndpointCount != 1 || leader == (got.Owner.Epoch == 0)) {
				err = fmt.Errorf("the Service is %v", got)
			}
			return err
		})
		return got
	}
	if hints := conditionOf(get("near", true), "TopologyHints"); hints.GetStatus() != trivetmeta.Condition_STATUS_FALSE || hints.GetReason() != "NO_ZONES" {
		t.Errorf("without zones the condition is %v", hints)
	}
	candidateOf(deps).Lose()
	got := get("web", false)
	if len(got.Syncs) != 0 || len(got.Slices) != 1 || got.Slices[0].WriteTime != nil || got.Owner.GetShard() != 27 {
		t.Errorf("without a term the Service is %v, want the slices and no sync", got)
	}
}

func TestPlanServiceSlices_StandbyPlans(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t,
		slicetest.Service("web"),
		slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Pod("web-1", "10.1.0.2", func(pod *corev1.Pod) { pod.Spec.NodeName = "node-z" }),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
	)
	deps.Leadership.(*termtest.Candidate).Lose()
	service, client, _ := run(t, deps)
	ready(t, deps)
	answer, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
	if err != nil {
		t.Fatal(err)
	}
	want := &trivetmeta.Plan{
		Changes: []*trivetmeta.Change{{
			Verb:    trivetmeta.Change_VERB_CREATE,
			Object:  &trivetmeta.ObjectReference{ApiVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", Namespace: "shop"},
			Reason:  "NEW_ENDPOINTS",
			Message: "1 IPv4 endpoints for ports http 8080/TCP",
			Outcome: trivetmeta.Change_OUTCOME_PLANNED,
		}},
		IncompleteReasons: []*trivetmeta.IncompleteReason{{
			Reason:  "NODE_MISSING",
			Message: `Node "node-z" does not exist, though Pods of the Service are bound to it.`,
			Object:  &trivetmeta.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: "node-z"},
		}},
		Mode: trivetmeta.Mode_MODE_ENFORCE,
	}
	ignored := gocmp.Options{
		protocmp.Transform(),
		protocmp.IgnoreFields(&trivetmeta.Plan{}, "etag"),
		protocmp.IgnoreFields(&trivetmeta.ObjectReference{}, "name"),
	}
	if diff := gocmp.Diff(want, answer.Plan, ignored); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if again, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"}); err != nil {
		t.Error(err)
	} else if diff := gocmp.Diff(answer.Plan, again.Plan, protocmp.Transform()); diff != "" || again.Plan.Etag == "" {
		t.Errorf("the same cache gives another plan, or no etag:\n%s", diff)
	}
	checkSource(t, answer.Sources)
	if slices, err := clientsetOf(deps).DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{}); err != nil || len(slices.Items) != 0 {
		t.Errorf("a standby wrote %d slices (%v)", len(slices.Items), err)
	}
	wantCounts := map[string]int64{"services": 0, "endpoint_slices": 0, "endpoints": 0, "pods": 0, "queue": 0}
	if diff := gocmp.Diff(wantCounts, service.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestRPCs_ErrorsSayWhatHappened(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, stop := run(t, deps)
	ready(t, deps)
	get := func(name string) func() error {
		return func() error {
			_, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: name})
			return err
		}
	}
	plan := func(name string) func() error {
		return func() error {
			_, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: name})
			return err
		}
	}
	list := func(request *slicev1.ListServiceSlicesRequest) func() error {
		return func() error {
			_, err := client.ListServiceSlices(t.Context(), request)
			return err
		}
	}
	type failure struct {
		code   codes.Code
		reason rpcerror.Reason
	}
	missing := failure{code: codes.NotFound, reason: api.ServiceNotFoundReason}
	invalid := failure{code: codes.InvalidArgument, reason: rpcerror.ValidationFailedReason}
	forged := failure{code: codes.InvalidArgument, reason: rpcerror.InvalidPageTokenReason}
	for name, c := range map[string]struct {
		call func() error
		want failure
	}{
		"get: no such Service":     {call: get("namespaces/shop/serviceslices/none"), want: missing},
		"get: another namespace":   {call: get("namespaces/else/serviceslices/web"), want: missing},
		"get: empty name":          {call: get(""), want: invalid},
		"get: path traversal":      {call: get("namespaces/../serviceslices/web"), want: invalid},
		"get: escapes":             {call: get("namespaces/shop/serviceslices/\x1b[31m"), want: invalid},
		"get: too long":            {call: get("namespaces/shop/serviceslices/" + strings.Repeat("a", 64)), want: invalid},
		"plan: no such Service":    {call: plan("namespaces/shop/serviceslices/none"), want: missing},
		"plan: capitals":           {call: plan("namespaces/shop/serviceslices/Web"), want: invalid},
		"list: negative page size": {call: list(&slicev1.ListServiceSlicesRequest{PageSize: -1}), want: invalid},
		"list: bad parent":         {call: list(&slicev1.ListServiceSlicesRequest{Parent: "shop"}), want: invalid},
		"list: forged page token":  {call: list(&slicev1.ListServiceSlicesRequest{PageToken: "Zm9yZ2VkLXRva2VuLXg"}), want: forged},
		"list: invalid token":      {call: list(&slicev1.ListServiceSlicesRequest{PageToken: "!"}), want: forged},
		"list: token too long":     {call: list(&slicev1.ListServiceSlicesRequest{PageToken: strings.Repeat("a", 1025)}), want: invalid},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call()
			if got := (failure{code: status.Code(err), reason: rpcerror.ReasonOf(err)}); got != c.want {
				t.Errorf("error is %v (%+v), want %+v", err, got, c.want)
			}
		})
	}
	stop()
	err := get("namespaces/shop/serviceslices/web")()
	if got, want := (failure{code: status.Code(err), reason: rpcerror.ReasonOf(err)}), (failure{code: codes.Unavailable, reason: rpcerror.ShuttingDownReason}); got != want {
		t.Errorf("after the stop the error is %v, want %+v", err, want)
	}
}

func TestRPCs_FailWhileTheCachesAreBeingFilled(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, slicetest.Service("web"))
	clientsetOf(deps).(*fake.Clientset).PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no pods today")
	})
	_, client, _ := run(t, deps)
	testkit.Eventually(t, 30*time.Second, func() error {
		_, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "namespaces/shop/serviceslices/web"})
		if status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != rpcerror.CacheNotSyncedReason {
			t.Fatalf("error is %v, want that the cache is not synced", err)
		}
		if !strings.Contains(err.Error(), "no pods today") {
			return fmt.Errorf("error %q does not have the cause", err)
		}
		return nil
	})
	if failed := deps.Ready.Failed(); len(failed) != 1 || !strings.HasPrefix(failed[0].Error(), "caches: ") {
		t.Errorf("readiness says %v, want that the caches are not filled", failed)
	}
}

func TestListServiceSlices_PagesHaveEveryServiceOnce(t *testing.T) {
	t.Parallel()
	var objects []runtime.Object
	for i := range 25 {
		objects = append(objects, slicetest.Service(fmt.Sprintf("svc-%02d", i), func(service *corev1.Service) {
			service.Namespace = fmt.Sprintf("ns-%d", i%2)
		}))
	}
	deps := fakeDeps(t, objects...)
	_, client, _ := run(t, deps)
	ready(t, deps)
	pages := func(parent string, size int32) (names []string, sizes []int) {
		request := &slicev1.ListServiceSlicesRequest{Parent: parent, PageSize: size}
		for {
			answer, err := client.ListServiceSlices(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			for _, service := range answer.ServiceSlices {
				names = append(names, service.Name)
			}
			sizes = append(sizes, len(answer.ServiceSlices))
			if request.PageToken = answer.NextPageToken; request.PageToken == "" {
				return names, sizes
			}
		}
	}
	var want, secondNamespace []string
	for _, parity := range []int{0, 1} {
		for i := parity; i < 25; i += 2 {
			want = append(want, fmt.Sprintf("namespaces/ns-%d/serviceslices/svc-%02d", parity, i))
		}
	}
	secondNamespace = want[13:]
	for _, c := range []struct {
		parent string
		size   int32
		names  []string
		sizes  []int
	}{
		{names: want, sizes: []int{25}},
		{size: 1_000_000_000, names: want, sizes: []int{25}},
		{size: 10, names: want, sizes: []int{10, 10, 5}},
		{parent: "namespaces/-", size: 25, names: want, sizes: []int{25}},
		{parent: "namespaces/ns-1", size: 7, names: secondNamespace, sizes: []int{7, 5}},
		{parent: "namespaces/none", sizes: []int{0}},
	} {
		names, sizes := pages(c.parent, c.size)
		if diff := gocmp.Diff(c.names, names); diff != "" {
			t.Errorf("%q by %d: names (-want +got):\n%s", c.parent, c.size, diff)
		}
		if diff := gocmp.Diff(c.sizes, sizes); diff != "" {
			t.Errorf("%q by %d: page sizes (-want +got):\n%s", c.parent, c.size, diff)
		}
	}
	first, err := client.ListServiceSlices(t.Context(), &slicev1.ListServiceSlicesRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	second, err := client.ListServiceSlices(t.Context(), &slicev1.ListServiceSlicesRequest{PageSize: 1, PageToken: first.NextPageToken})
	if err != nil || first.ResumeToken == "" || second.ResumeToken != "" {
		t.Errorf("resume tokens are %q and %q (%v), want one on the first page only", first.ResumeToken, second.GetResumeToken(), err)
	}
	_, err = client.ListServiceSlices(t.Context(), &slicev1.ListServiceSlicesRequest{Parent: "namespaces/ns-1", PageToken: first.NextPageToken})
	if rpcerror.ReasonOf(err) != rpcerror.InvalidPageTokenReason {
		t.Errorf("token of another list gives %v, want %s", err, rpcerror.InvalidPageTokenReason)
	}
}
