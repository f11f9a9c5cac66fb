package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1kube "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirrorcontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// fakeWriter is a controller of one source of slices, for one Service.
type fakeWriter struct {
	name string
	plan slicecontroller.Preview
	err  error // of Reconcile, after it tried the plan
	log  *[]string
}

func (f *fakeWriter) Preview(slicecontroller.Key) (slicecontroller.Preview, bool) {
	return f.plan, true
}

func (f *fakeWriter) Reconcile(_ context.Context, _ slicecontroller.Key, fingerprint string) (slicecontroller.Reconciled, error) {
	if fingerprint != "" && fingerprint != f.plan.Fingerprint {
		return slicecontroller.Reconciled{}, slicecontroller.ErrPlanChanged
	}
	*f.log = append(*f.log, f.name)
	result := slicecontroller.Reconciled{Preview: f.plan}
	for range f.plan.Plan.Changes {
		outcome := slicecontroller.Outcome{State: slicecontroller.Applied, Time: time.Now()}
		if f.err != nil {
			outcome = slicecontroller.Outcome{State: slicecontroller.Failed, Err: f.err, Time: time.Now()}
		}
		result.Outcomes = append(result.Outcomes, outcome)
	}
	return result, f.err
}

// bothSources is a Service web with both controllers.
type bothSources struct {
	fakeParts
	service slicecontroller.ServiceState
	missing bool
	unread  error // why Endpoints are not read yet
	// selector and endpoints write the slices of the two sources.
	selector, endpoints fakeWriter
	mirror              fakeMirrors
	wrote               []string
}

func (b *bothSources) State(slicecontroller.Key) (slicecontroller.ServiceState, bool) {
	return b.service, !b.missing
}

func (b *bothSources) Preview(key slicecontroller.Key) (slicecontroller.Preview, bool) {
	return b.selector.Preview(key)
}

func (b *bothSources) Reconcile(ctx context.Context, key slicecontroller.Key, fingerprint string) (slicecontroller.Reconciled, error) {
	return b.selector.Reconcile(ctx, key, fingerprint)
}

func (b *bothSources) EndpointAt(slicecontroller.Key, string) (explain.Facts, error) {
	if b.missing {
		return explain.Facts{}, slicecontroller.ErrServiceNotFound
	}
	return explain.Facts{Now: time.Now(), Service: b.service.Service}, nil
}

type fakeMirrors struct {
	*fakeWriter
	state  mirrorcontroller.State
	known  bool
	health mirrorcontroller.Health
}

func (f *fakeMirrors) State(slicecontroller.Key) (mirrorcontroller.State, bool) {
	return f.state, f.known
}
func (f *fakeMirrors) Limits() mirror.Limits           { return mirror.Limits{PerSubset: 1000} }
func (f *fakeMirrors) Health() mirrorcontroller.Health { return f.health }

// newBothSources returns a Service without a selector, whose Endpoints object is mirrored.
func newBothSources(changes ...func(*bothSources)) *bothSources {
	b := &bothSources{}
	b.shards = []term.ShardStatus{{Here: true, Epoch: 7, ReplicaID: "slicesvc-1"}}
	b.service = slicecontroller.ServiceState{
		Service:   slicetest.Service("web", func(service *corev1.Service) { service.Spec.Selector = nil }),
		Unmanaged: index.NoSelector,
	}
	b.selector = fakeWriter{name: "selector", log: &b.wrote, plan: slicecontroller.Preview{Unmanaged: true, Fingerprint: "aa"}}
	b.endpoints = fakeWriter{name: "endpoints", log: &b.wrote, plan: slicecontroller.Preview{Fingerprint: "bb", Plan: planOf(planned.Create, "web-mirrored")}}
	b.mirror = fakeMirrors{fakeWriter: &b.endpoints, known: true, state: mirrorcontroller.State{
		Endpoints: endpoints("10.0.0.1", "10.0.0.2"), ContentKnown: true, Writer: "kubectl-create",
		Slices: []*discoveryv1.EndpointSlice{mirrored("web-mirrored", 2)},
	}}
	for _, change := range changes {
		change(b)
	}
	return b
}

func (b *bothSources) server() *Server {
	server := b.fakeParts.server()
	server.cfg.Controller, server.cfg.Mirrors = b, &b.mirror
	server.cfg.CheckMirrors = func() error { return b.unread }
	return server
}

func endpoints(addresses ...string) *corev1.Endpoints {
	object := &corev1.Endpoints{
		ObjectMeta: metav1kube.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-of-endpoints", ResourceVersion: "12"},
		Subsets:    []corev1.EndpointSubset{{Ports: []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}},
	}
	for _, address := range addresses {
		object.Subsets[0].Addresses = append(object.Subsets[0].Addresses, corev1.EndpointAddress{IP: address})
	}
	return object
}

func mirrored(name string, count int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1kube.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "5"},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range count {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{slicetest.Address(i)}})
	}
	return slice
}

func planOf(verb planned.Verb, names ...string) pack.Plan {
	plan := pack.Plan{}
	for _, name := range names {
		plan.Changes = append(plan.Changes, pack.Change{Verb: verb, Slice: mirrored(name, 1), From: mirrored(name, 2)})
	}
	return plan
}

// withSelector gives the Service a selector and a slice of its Pods.
func withSelector(b *bothSources) {
	b.service.Service, b.service.Unmanaged = slicetest.Service("web"), ""
	b.service.Slices = []*discoveryv1.EndpointSlice{slicetest.Slice(b.service.Service, "web-pods", slicetest.Pods(0, 3))}
	b.selector.plan = slicecontroller.Preview{Fingerprint: "aa", Plan: planOf(planned.Update, "web-pods")}
	b.mirror.state.Reason = mirror.HasSelector
	b.endpoints.plan.Plan = planOf(planned.Delete, "web-mirrored")
}

// selectorRemoved leaves the slices of Pods of a former selector, which are deleted.
func selectorRemoved(b *bothSources) {
	b.service.Slices = []*discoveryv1.EndpointSlice{slicetest.Slice(slicetest.Service("web"), "web-pods", slicetest.Pods(0, 3))}
	b.selector.plan = slicecontroller.Preview{Fingerprint: "aa", Plan: planOf(planned.Delete, "web-pods")}
}

const webName = "namespaces/shop/serviceslices/web"

func get(t *testing.T, b *bothSources) *slicev1.ServiceSlices {
	t.Helper()
	answer, err := b.server().GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: webName})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetServiceSlices()
}

// The conditions tell what is written from what, what is dropped and why, and what to do.
func TestConditions_OfMirroredServices(t *testing.T) {
	reason := func(reason mirror.Reason) func(*bothSources) {
		return func(b *bothSources) { b.mirror.state.Reason, b.mirror.state.Slices = reason, nil }
	}
	for name, c := range map[string]struct {
		change func(*bothSources)
		// want has the type, the status, the reason and a part of the message of each condition.
		want    [][4]string
		sources string
		dropped int32
	}{
		"mirrored": {
			change:  func(*bothSources) {},
			want:    [][4]string{{"Managed", "TRUE", "MIRRORED", `from its Endpoints object, which "kubectl-create" wrote last.`}},
			sources: "ENDPOINTS",
		},
		"no address": {
			change:  func(b *bothSources) { b.mirror.state.Endpoints, b.mirror.state.Slices = endpoints(), nil },
			want:    [][4]string{{"Managed", "TRUE", "MIRRORED", "The object has no address."}},
			sources: "ENDPOINTS",
		},
		"too many": {
			change: func(b *bothSources) { b.mirror.state.TooMany = 500 },
			want: [][4]string{
				{"AddressesDropped", "TRUE", "TOO_MANY_ADDRESSES", "500 addresses of the Endpoints object are in no slice, because a subset may have 1000. With --mirroring-spill"},
				{"Managed", "TRUE", "MIRRORED", ""},
			},
			sources: "ENDPOINTS", dropped: 500,
		},
		"invalid, by a hostile writer": {
			change: func(b *bothSources) {
				b.mirror.state.Invalid, b.mirror.state.InvalidCount, b.mirror.state.Writer = []string{"\xff" + strings.Repeat("x", 1<<16)}, 1, "a\xff\nb"
			},
			want: [][4]string{
				{"AddressesDropped", "TRUE", "INVALID_ADDRESSES", `1 address of the Endpoints object is invalid: "\xffx`},
				{"Managed", "TRUE", "MIRRORED", `"a\xff\nb" wrote last`},
			},
			sources: "ENDPOINTS", dropped: 1,
		},
		"the selector is gone": {
			change: selectorRemoved,
			want: [][4]string{
				{"Managed", "TRUE", "MIRRORED", ""},
				{"SourcesOverlap", "TRUE", "SELECTOR_REMOVED", "1 slice is left of the Pods that it selected. Traffic goes to these Pods, too. Delete what is left, or start slicesvc with --cleanup-selectorless."},
			},
			sources: "SELECTOR ENDPOINTS",
		},
		"a selector came": {
			change: withSelector,
			want: [][4]string{
				{"Managed", "TRUE", "SELECTOR", ""},
				{"SourcesOverlap", "TRUE", "HAS_SELECTOR", "1 mirrored slice is left of its Endpoints object. slicesvc deletes them."},
			},
			sources: "SELECTOR ENDPOINTS",
		},
		"a selector, and nothing mirrored": {
			change: func(b *bothSources) {
				withSelector(b)
				b.mirror.state.Slices, b.mirror.state.TooMany = nil, 3
			},
			want:    [][4]string{{"Managed", "TRUE", "SELECTOR", ""}},
			sources: "SELECTOR",
		},
		"skip-mirror":     {change: reason(mirror.SkipMirrorLabel), want: [][4]string{{"Managed", "FALSE", "SKIP_MIRROR_LABEL", "endpointslice.kubernetes.io/skip-mirror=true"}}},
		"a leader's lock": {change: reason(mirror.LeaderAnnotation), want: [][4]string{{"Managed", "FALSE", "LEADER_ANNOTATION", "a lock of leader election"}}},
		"no Endpoints":    {change: reason(mirror.NoEndpoints), want: [][4]string{{"Managed", "FALSE", "NO_ENDPOINTS", "neither a selector nor an Endpoints object"}}},
		"nothing known":   {change: func(b *bothSources) { b.mirror.state, b.mirror.known = mirrorcontroller.State{}, false }, want: [][4]string{{"Managed", "FALSE", "NO_ENDPOINTS", "neither a selector nor an Endpoints object"}}},
		"an ExternalName": {
			change: func(b *bothSources) {
				b.service.Unmanaged, b.mirror.state, b.mirror.known = index.ExternalName, mirrorcontroller.State{}, false
			},
			want: [][4]string{{"Managed", "FALSE", "EXTERNAL_NAME", "stands for a DNS name"}},
		},
		"another writer, and the namespace goes": {
			change: func(b *bothSources) {
				b.mirror.state.ContendedBy, b.mirror.state.CreationRefusedSince = "kube-controller-manager", time.Now()
			},
			want: [][4]string{
				{"Contended", "TRUE", "ANOTHER_WRITER", "kube-controller-manager"}, {"CreationRefused", "TRUE", "NAMESPACE_TERMINATING", ""}, {"Managed", "TRUE", "MIRRORED", ""},
			},
			sources: "ENDPOINTS",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := get(t, newBothSources(c.change))
			var conditions [][4]string
			for i, condition := range got.GetConditions() {
				message := condition.GetMessage()
				if i < len(c.want) && strings.Contains(message, c.want[i][3]) {
					message = c.want[i][3]
				}
				if len(condition.GetMessage()) > 600 {
					t.Errorf("%s has a message of %d bytes", condition.GetType(), len(condition.GetMessage()))
				}
				conditions = append(conditions, [4]string{condition.GetType(), strings.TrimPrefix(condition.GetStatus().String(), "STATUS_"), condition.GetReason(), message})
			}
			if diff := gocmp.Diff(c.want, conditions); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			var sources []string
			dropped := int32(0)
			for _, sync := range got.GetSyncs() {
				sources = append(sources, strings.TrimPrefix(sync.GetSource().String(), "SLICE_SOURCE_"))
				dropped += sync.GetDroppedAddressCount()
			}
			if strings.Join(sources, " ") != c.sources || dropped != c.dropped {
				t.Errorf("syncs of %q with %d dropped addresses, want %q and %d", sources, dropped, c.sources, c.dropped)
			}
		})
	}
}

func TestGetServiceSlices_HasTheSlicesOfBothSources(t *testing.T) {
	written := time.Now().Add(-time.Minute)
	b := newBothSources(selectorRemoved, func(b *bothSources) {
		b.mirror.state.WriteTimes = map[string]time.Time{"web-mirrored": written}
		b.mirror.state.Failed = map[string]slicecontroller.SliceFailure{"web-mirrored": {Err: errors.New("a webhook says no\xff")}}
	})
	got := get(t, b)
	describe := func(slice *slicev1.SliceSummary) string {
		return fmt.Sprintf("%s %s %d/%d written %t: %q", slice.GetName(), slice.GetSource(), slice.GetEndpointCount(), slice.GetCapacity(), slice.GetWriteTime() != nil, slice.GetLastError())
	}
	var slices []string
	for _, slice := range got.GetSlices() {
		slices = append(slices, describe(slice))
	}
	want := []string{
		`web-mirrored SLICE_SOURCE_ENDPOINTS 2/1000 written true: "a webhook says no` + "\ufffd" + `"`,
		`web-pods SLICE_SOURCE_SELECTOR 3/100 written false: ""`,
	}
	if diff := gocmp.Diff(want, slices); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
	if got.GetEndpointCount() != 5 || got.GetIdealSliceCount() != 1 {
		t.Errorf("%d endpoints, at least %d slices; want 5 and 1", got.GetEndpointCount(), got.GetIdealSliceCount())
	}
	b.shards[0].Here = false // only the leader knows what it wrote
	got = get(t, b)
	if slice := got.GetSlices()[0]; slice.GetWriteTime() != nil || slice.GetLastError() != "" || got.GetSyncs() != nil {
		t.Errorf("a replica that does not lead says %v and %v", slice, got.GetSyncs())
	}
	if got.GetConditions()[1].GetType() != conditionSourcesOverlap {
		t.Errorf("a replica that does not lead has the conditions %v", got.GetConditions())
	}
}

// One plan has the changes of both sources, those that create first. One etag covers both.
func TestReconcile_WritesBothSources(t *testing.T) {
	refused := fmt.Errorf("update: %w", kube.ErrConflict)
	changed := func(b *bothSources) { b.endpoints.plan.Fingerprint = "cc" }
	for name, c := range map[string]struct {
		change     func(*bothSources)
		etag       string
		wrote      string
		outcomes   string
		code       codes.Code
		wantReason rpcerror.Reason
	}{
		"mirrored alone":   {change: func(*bothSources) {}, etag: "bb", wrote: "endpoints", outcomes: "web-mirrored APPLIED"},
		"selector removed": {change: selectorRemoved, etag: "bb-aa", wrote: "endpoints selector", outcomes: "web-mirrored APPLIED, web-pods APPLIED"},
		"selector added":   {change: withSelector, etag: "aa-bb", wrote: "selector endpoints", outcomes: "web-pods APPLIED, web-mirrored APPLIED"},
		"any plan":         {change: withSelector, wrote: "selector endpoints", outcomes: "web-pods APPLIED, web-mirrored APPLIED"},
		"second has no change": {
			change: func(b *bothSources) { selectorRemoved(b); b.selector.plan.Plan.Changes = nil },
			etag:   "bb-aa", wrote: "endpoints", outcomes: "web-mirrored APPLIED",
		},
		"second part is other": {change: func(b *bothSources) { withSelector(b); changed(b) }, etag: "aa-bb", code: codes.Aborted, wantReason: rpcerror.ETagMismatchReason},
		"one part is no more":  {change: func(*bothSources) {}, etag: "bb-aa", code: codes.Aborted, wantReason: rpcerror.ETagMismatchReason},
		"the first fails": {
			change: func(b *bothSources) { selectorRemoved(b); b.endpoints.err = refused },
			etag:   "bb-aa", wrote: "endpoints", outcomes: "web-mirrored FAILED, web-pods SKIPPED", code: codes.Aborted, wantReason: rpcerror.ConflictReason,
		},
		"the second fails": {
			change: func(b *bothSources) { selectorRemoved(b); b.selector.err = refused },
			wrote:  "endpoints selector", outcomes: "web-mirrored APPLIED, web-pods FAILED", code: codes.Aborted, wantReason: rpcerror.ConflictReason,
		},
		"nothing is managed": {
			change: func(b *bothSources) { b.mirror.state.Reason, b.mirror.state.Slices = mirror.SkipMirrorLabel, nil },
			code:   codes.FailedPrecondition, wantReason: ServiceUnmanagedReason,
		},
		"another replica leads": {
			change: func(b *bothSources) {
				withSelector(b)
				b.shards[0] = term.ShardStatus{ReplicaID: "slicesvc-2", GRPCAddress: "10.0.0.2:7603"}
			},
			etag: "stale-stale", code: codes.FailedPrecondition, wantReason: rpcerror.NotLeaderReason,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBothSources(c.change)
			answer, err := b.server().ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: webName, Etag: c.etag})
			if status.Code(err) != c.code || rpcerror.ReasonOf(err) != c.wantReason {
				t.Errorf("error is %v, want %s %s", err, c.code, c.wantReason)
			}
			if got := strings.Join(b.wrote, " "); got != c.wrote {
				t.Errorf("wrote %q, want %q", got, c.wrote)
			}
			plan := answer.GetPlan()
			for _, detail := range status.Convert(err).Details() {
				if tried, ok := detail.(*metav1.Plan); ok {
					plan = tried
				}
			}
			if got := outcomesOf(plan); got != c.outcomes {
				t.Errorf("outcomes are %q, want %q", got, c.outcomes)
			}
		})
	}
}

// Only the writers that are not in dry run write; a plan that none may write is refused.
func TestReconcile_LoopsInDryRunWriteNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change                 func(*bothSources)
		selectorDry, mirrorDry bool
		wrote, outcomes        string
		mode                   metav1.Mode
		code                   codes.Code
	}{
		"mirrored alone, dry":       {change: func(*bothSources) {}, mirrorDry: true, mode: metav1.Mode_MODE_SHADOW, code: codes.FailedPrecondition},
		"mirrored alone, other dry": {change: func(*bothSources) {}, selectorDry: true, wrote: "endpoints", outcomes: "web-mirrored APPLIED", mode: metav1.Mode_MODE_ENFORCE},
		"selector removed, one dry": {change: selectorRemoved, mirrorDry: true, wrote: "selector", outcomes: "web-mirrored SKIPPED, web-pods APPLIED", mode: metav1.Mode_MODE_ENFORCE},
		"selector added, other dry": {change: withSelector, mirrorDry: true, wrote: "selector", outcomes: "web-pods APPLIED, web-mirrored SKIPPED", mode: metav1.Mode_MODE_ENFORCE},
		"selector added, both dry":  {change: withSelector, selectorDry: true, mirrorDry: true, mode: metav1.Mode_MODE_SHADOW, code: codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBothSources(c.change)
			server := b.server()
			server.cfg.SelectorDryRun, server.cfg.MirrorDryRun = func() bool { return c.selectorDry }, func() bool { return c.mirrorDry }
			planned, err := server.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: webName})
			if err != nil || planned.GetPlan().GetMode() != c.mode {
				t.Errorf("plan has mode %v (error %v), want %v", planned.GetPlan().GetMode(), err, c.mode)
			}
			answer, err := server.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: webName, Etag: planned.GetPlan().GetEtag()})
			if status.Code(err) != c.code || c.code != codes.OK && rpcerror.ReasonOf(err) != LoopDryRunReason {
				t.Errorf("error is %v, want code %v", err, c.code)
			}
			if wrote, outcomes := strings.Join(b.wrote, " "), outcomesOf(answer.GetPlan()); wrote != c.wrote || outcomes != c.outcomes {
				t.Errorf("wrote %q with outcomes %q, want %q and %q", wrote, outcomes, c.wrote, c.outcomes)
			}
		})
	}
}

func outcomesOf(plan *metav1.Plan) string {
	var outcomes []string
	for _, change := range plan.GetChanges() {
		outcomes = append(outcomes, change.GetObject().GetName()+" "+strings.TrimPrefix(change.GetOutcome().String(), "OUTCOME_"))
	}
	return strings.Join(outcomes, ", ")
}

// What a plan shows is what its etag reconciles, also as a dry run on any replica.
func TestPlan_HasTheEtagThatReconcileTakes(t *testing.T) {
	for _, change := range []func(*bothSources){func(*bothSources) {}, selectorRemoved, withSelector} {
		b := newBothSources(change)
		server := b.server()
		planned, err := server.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: webName})
		if err != nil || len(b.wrote) > 0 {
			t.Fatalf("plan: %v, wrote %v", err, b.wrote)
		}
		request := &slicev1.ReconcileServiceSlicesRequest{Name: webName, Etag: planned.GetPlan().GetEtag(), ValidateOnly: true}
		dry, err := server.ReconcileServiceSlices(t.Context(), request)
		if err != nil || outcomesOf(dry.GetPlan()) != outcomesOf(planned.GetPlan()) || len(b.wrote) > 0 {
			t.Errorf("dry run: %v, %v, wrote %v; want the plan %v", err, dry, b.wrote, planned)
		}
		request.ValidateOnly = false
		if _, err := server.ReconcileServiceSlices(t.Context(), request); err != nil || len(b.wrote) == 0 {
			t.Errorf("reconcile: %v, wrote %v", err, b.wrote)
		}
	}
}

func TestProblems_OfMirroredSlices(t *testing.T) {
	b := newBothSources(func(b *bothSources) {
		b.caches = []kube.KindStatus{{Cache: answer.Cache{Kind: "Endpoints", Heard: time.Now()}}}
		b.health.Shards = []slicecontroller.HeldShard{{}}
		group := slicecontroller.ServiceGroup{Count: 1, First: []slicecontroller.Key{{Namespace: "shop", Name: "web"}}, Since: time.Now(), Cause: "the cause", Latest: slicecontroller.Key{Namespace: "shop", Name: "web"}}
		b.mirror.health = mirrorcontroller.Health{
			Health:   slicecontroller.Health{Failing: group, Contended: group, Shards: []slicecontroller.HeldShard{{Blocked: errors.New("no list")}}},
			Dropping: group, BothSources: group,
		}
	})
	var got []string
	for _, problem := range b.server().Problems() {
		got = append(got, problem.GetCode()+" "+problem.GetSeverity().String()+" "+problem.GetResource())
	}
	want := []string{
		"SHARD_BLOCKED SEVERITY_ERROR replicas/slicesvc-1",
		"SLICE_SYNCS_FAILING SEVERITY_ERROR " + webName,
		"SLICES_CONTENDED SEVERITY_WARNING " + webName,
		"ADDRESSES_DROPPED SEVERITY_WARNING " + webName,
		"SLICE_SOURCES_OVERLAP SEVERITY_WARNING " + webName,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// A loop that is not selected does no work on the shards, which is no problem.
func TestProblems_OfTheMirrorLoopAlone(t *testing.T) {
	b := newBothSources(func(b *bothSources) {
		b.caches = []kube.KindStatus{{Cache: answer.Cache{Kind: "Endpoints", Heard: time.Now()}}}
		b.health.Shards = nil
		b.mirror.health.Shards = []slicecontroller.HeldShard{{}}
	})
	server := b.server()
	if problems := server.Problems(); len(problems) != 1 {
		t.Fatalf("problems are %v, want that no slices are written", problems)
	}
	server.cfg.SelectorLoopOff = true
	if problems := server.Problems(); len(problems) != 0 {
		t.Errorf("problems are %v", problems)
	}
}

// Endpoints without a Service get no slices. The explanation says so; without Endpoints, the
// Service is not found.
func TestExplainEndpoint_OfEndpointsWithoutAService(t *testing.T) {
	b := newBothSources(func(b *bothSources) {
		b.missing, b.mirror.state.Reason, b.mirror.state.Slices = true, mirror.NoService, nil
	})
	request := &slicev1.ExplainEndpointRequest{Name: webName, Endpoint: &slicev1.ExplainEndpointRequest_Address{Address: "10.0.0.1"}}
	answer, err := b.server().ExplainEndpoint(t.Context(), request)
	if err != nil || answer.GetIncluded() || answer.GetBrokenIndex() != 0 || !strings.Contains(answer.GetEvidence()[0].GetMessage(), "There is no Service shop/web") {
		t.Errorf("answer is %v, %v; want that there is no Service", answer, err)
	}
	_, err = b.server().GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: webName})
	if rpcerror.ReasonOf(err) != ServiceNotFoundReason || rpcerror.MetadataOf(err, "mirror_reason") != "NO_SERVICE" || !strings.Contains(err.Error(), "is not mirrored without one") {
		t.Errorf("error is %v, want that the Endpoints are not mirrored", err)
	}
	b.mirror.state, b.mirror.known = mirrorcontroller.State{}, false
	if _, err := b.server().ExplainEndpoint(t.Context(), request); rpcerror.ReasonOf(err) != ServiceNotFoundReason {
		t.Errorf("error is %v, want %s", err, ServiceNotFoundReason)
	}
}

// Until the Endpoints are read, it is not known whether a Service without a selector is mirrored.
func TestServer_SaysThatEndpointsAreNotReadYet(t *testing.T) {
	b := newBothSources(func(b *bothSources) {
		b.unread, b.mirror.state, b.mirror.known = errors.New("list endpoints: forbidden"), mirrorcontroller.State{}, false
	})
	server := b.server()
	if got := get(t, b).GetConditions()[0]; !strings.Contains(got.GetMessage(), "not read yet") {
		t.Errorf("the condition is %v", got)
	}
	_, planErr := server.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: webName})
	_, reconcileErr := server.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: webName})
	_, explainErr := server.ExplainEndpoint(t.Context(), &slicev1.ExplainEndpointRequest{Name: webName, Endpoint: &slicev1.ExplainEndpointRequest_Address{Address: "10.0.0.1"}})
	for name, err := range map[string]error{"plan": planErr, "reconcile": reconcileErr, "explain": explainErr} {
		if rpcerror.ReasonOf(err) != rpcerror.CacheNotSyncedReason {
			t.Errorf("%s: error is %v, want %s", name, err, rpcerror.CacheNotSyncedReason)
		}
	}
	withSelector(b) // does not depend on Endpoints
	b.mirror.state = mirrorcontroller.State{}
	_, planErr = server.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: webName})
	_, explainErr = server.ExplainEndpoint(t.Context(), &slicev1.ExplainEndpointRequest{Name: webName, Endpoint: &slicev1.ExplainEndpointRequest_Address{Address: "10.0.0.1"}})
	if planErr != nil || explainErr != nil {
		t.Errorf("of a Service with a selector: plan %v, explanation %v", planErr, explainErr)
	}
}
