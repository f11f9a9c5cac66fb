package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// clients are the clients of all services of bootstrapsvc.
type clients struct {
	bootstrapv1.BaselineServiceClient
	bootstrapv1.APIServerServiceClient
	bootstrapv1.FindingServiceClient
	bootstrapv1.RepairServiceClient
}

func newClients(connection grpc.ClientConnInterface) *clients {
	return &clients{
		BaselineServiceClient:  bootstrapv1.NewBaselineServiceClient(connection),
		APIServerServiceClient: bootstrapv1.NewAPIServerServiceClient(connection),
		FindingServiceClient:   bootstrapv1.NewFindingServiceClient(connection),
		RepairServiceClient:    bootstrapv1.NewRepairServiceClient(connection),
	}
}

// serve serves the RPCs of a fixture through the production interceptors.
func serve(t *testing.T, f *fixture) *clients {
	t.Helper()
	return newClients(testkit.Serve(t, f.Register))
}

// lead runs the fixture until the test ends, and returns once the baseline is complete.
func lead(t *testing.T, f *fixture) {
	t.Helper()
	f.start(t)
	t.Cleanup(func() { f.end(t) })
	testkit.Eventually(t, time.Minute, func() error {
		if counts := f.Counts(); counts["namespaces"] != 4 || counts["endpoint_addresses"] != 1 {
			return fmt.Errorf("counts are %v", counts)
		}
		if service, err := f.objects.Service(t.Context()); service == nil || err != nil {
			return fmt.Errorf("service is %v, %v", service, err)
		}
		return nil
	})
}

func wantError(t *testing.T, err error, code codes.Code, reason rpcerror.Reason) {
	t.Helper()
	if status.Code(err) != code || rpcerror.ReasonOf(err) != reason {
		t.Errorf("error = %v with reason %q, want %v with %q", err, rpcerror.ReasonOf(err), code, reason)
	}
}

// comparingChanges ignores what differs at each run.
func comparingChanges() cmp.Option {
	return cmp.Options{
		protocmp.Transform(),
		protocmp.IgnoreFields(&metav1.ObjectReference{}, "uid"),
		protocmp.IgnoreFields(&metav1.Change{}, "apply_time", "base_version"),
		protocmp.IgnoreFields(&metav1.Plan{}, "etag"),
	}
}

func plannedChange(apiVersion, kind, namespace, name, reason, message string) *metav1.Change {
	return &metav1.Change{
		Verb:   metav1.Change_VERB_CREATE,
		Object: &metav1.ObjectReference{ApiVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name},
		Reason: reason, Message: message, Outcome: metav1.Change_OUTCOME_PLANNED,
	}
}

func TestGetBaseline_EmptyCluster(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	want := &bootstrapv1.Baseline{
		Name: "baseline",
		Namespaces: []*bootstrapv1.Baseline_Namespace{
			{Name: "default"}, {Name: "kube-node-lease"}, {Name: "kube-public"}, {Name: "kube-system"},
		},
		KubernetesService:  &bootstrapv1.Baseline_KubernetesService{DesiredAddresses: []string{"10.1.0.2"}},
		EndpointReconciler: "lease",
		ServiceCidr:        &bootstrapv1.Baseline_ServiceCIDR{Exists: true, Cidrs: []string{"10.0.0.0/16"}, Ready: true},
		Plan: &metav1.Plan{Mode: metav1.Mode_MODE_ENFORCE, Changes: []*metav1.Change{
			plannedChange("v1", "Namespace", "", "default", "NAMESPACE_MISSING", "system namespace default does not exist"),
			plannedChange("v1", "Namespace", "", "kube-node-lease", "NAMESPACE_MISSING", "system namespace kube-node-lease does not exist"),
			plannedChange("v1", "Namespace", "", "kube-public", "NAMESPACE_MISSING", "system namespace kube-public does not exist"),
			plannedChange("v1", "Namespace", "", "kube-system", "NAMESPACE_MISSING", "system namespace kube-system does not exist"),
			plannedChange("v1", "Service", "default", "kubernetes", "SERVICE_MISSING",
				"service default/kubernetes does not exist; its ClusterIP will be 10.0.0.1"),
			plannedChange("discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes", "ENDPOINT_SLICE_MISSING",
				"endpointslice default/kubernetes does not exist; it will hold 10.1.0.2"),
			plannedChange("v1", "Endpoints", "default", "kubernetes", "ENDPOINTS_MISSING",
				"endpoints default/kubernetes do not exist; they will hold 10.1.0.2"),
		}},
	}
	got, err := serve(t, f).GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.GetBaseline(), comparingChanges()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	source := &metav1.Source{Service: "bootstrapsvc", ReplicaId: "self-1"}
	if diff := cmp.Diff([]*metav1.Source{source}, got.GetSources(), protocmp.Transform(), protocmp.IgnoreFields(source, "read_time")); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if got.GetSources()[0].GetReadTime() == nil || got.GetBaseline().GetPlan().GetEtag() == "" {
		t.Errorf("answer = %v, want a read time and an etag", got)
	}
}

func TestGetBaseline_SettledCluster(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	want := &bootstrapv1.Baseline{
		Name: "baseline",
		Namespaces: []*bootstrapv1.Baseline_Namespace{
			{Name: "default", Exists: true, Phase: "Active"},
			{Name: "kube-node-lease", Exists: true, Phase: "Active"},
			{Name: "kube-public", Exists: true, Phase: "Active"},
			{Name: "kube-system", Exists: true, Phase: "Active"},
		},
		EndpointReconciler: "lease",
		KubernetesService: &bootstrapv1.Baseline_KubernetesService{
			Exists: true, ClusterIp: "10.0.0.1", Type: "ClusterIP", Ports: []string{"https:443/TCP"},
			EndpointsAddresses:     []string{"10.1.0.1"},
			EndpointSliceAddresses: []string{"10.1.0.1"},
			DesiredAddresses:       []string{"10.1.0.1"},
		},
		ServiceCidr: &bootstrapv1.Baseline_ServiceCIDR{Exists: true, Cidrs: []string{"10.0.0.0/16"}, Ready: true},
		Plan:        &metav1.Plan{Mode: metav1.Mode_MODE_ENFORCE},
	}
	got, err := serve(t, f).GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.GetBaseline(), comparingChanges()); diff != "" {
		t.Errorf("baseline (-want +got):\n%s", diff)
	}
}

func TestGetBaseline_ReportsAreConditions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	for _, name := range []string{"kube-public", "kube-system"} {
		edit(f.objects, "Namespace "+name, func(n *corev1.Namespace) {
			n.Status.Phase = corev1.NamespaceTerminating
			n.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
		})
	}
	f.objects.keepCIDR(func(c *baseline.ServiceCIDR) {
		c.Object.Status.Conditions[0].Status, c.Object.Status.Conditions[0].Reason = "Unknown", "Checking"
	})
	got, err := serve(t, f).GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*metav1.Condition{{
		Type: "NamespacesActive", Status: metav1.Condition_STATUS_FALSE, Reason: "NAMESPACE_TERMINATING",
		Message: "system namespace kube-public is being deleted; it is created again afterwards; it waits for: finalizers kubernetes; " +
			"system namespace kube-system is being deleted; it is created again afterwards; it waits for: finalizers kubernetes",
	}, {
		Type: "ServiceCIDRReady", Status: metav1.Condition_STATUS_FALSE, Reason: "SERVICE_CIDR_NOT_READY",
		Message: "servicecidr kubernetes is not ready, so no ClusterIP is allocated from it: Unknown Checking",
	}}
	if diff := cmp.Diff(want, got.GetBaseline().GetConditions(), protocmp.Transform()); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if changes := got.GetBaseline().GetPlan().GetChanges(); len(changes) != 0 {
		t.Errorf("planned %v, want nothing: a report is no change", changes)
	}
}

func TestGetBaseline_EachReasonOfAReportHasACondition(t *testing.T) {
	t.Parallel()
	types := map[string]baseline.Reason{}
	for _, reconciler := range newFixture(t).reconcilers() {
		for _, reason := range reconciler.Reasons {
			name, ok := api.ConditionTypeOf(reason)
			if other := types[name]; !ok || other != "" {
				t.Errorf("%s has the condition %q, which %q has, too", reason, name, other)
			}
			types[name] = reason
		}
	}
}

func TestGetBaseline_UpdatesShowTheirFields(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	edit(f.objects, "Service kubernetes", func(s *corev1.Service) {
		delete(s.Labels, "provider")
		s.Spec.Ports[0].Port = 8443
	})
	got, err := serve(t, f).ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{ValidateOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	want := []*metav1.FieldChange{
		{Path: "metadata.labels.provider", After: `"kubernetes"`},
		{Path: "spec.ports[0].port", Before: "8443", After: "443"},
	}
	changes := got.GetPlan().GetChanges()
	if len(changes) != 1 || changes[0].GetBaseVersion() == "" || changes[0].GetVerb() != metav1.Change_VERB_UPDATE {
		t.Fatalf("changes = %v, want one update of a version", changes)
	}
	if diff := cmp.Diff(want, changes[0].GetFieldChanges(), protocmp.Transform()); diff != "" {
		t.Errorf("field changes (-want +got):\n%s", diff)
	}
}

func TestReconcileBaseline_ValidateOnlyWritesNothingAndNeedsNoTerm(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	client := serve(t, f)
	got, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{ValidateOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got.GetPlan(), 7, metav1.Change_OUTCOME_PLANNED)
	if written := f.objects.writes(); len(written) != 0 {
		t.Errorf("wrote %v", written)
	}
	_, err = client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{ValidateOnly: true, Etag: got.GetPlan().GetEtag()})
	if err != nil {
		t.Errorf("with the etag of the plan: %v", err)
	}
	f.keys.put(readyPeer("10.1.0.3"))
	_, err = client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{ValidateOnly: true, Etag: got.GetPlan().GetEtag()})
	wantError(t, err, codes.Aborted, rpcerror.ETagMismatchReason)
}

func wantOutcomes(t *testing.T, plan *metav1.Plan, count int, outcome metav1.Change_Outcome) {
	t.Helper()
	for _, change := range plan.GetChanges() {
		if change.GetOutcome() != outcome {
			t.Errorf("change of %s has the outcome %s, want %s", change.GetObject(), change.GetOutcome(), outcome)
		}
	}
	if got := len(plan.GetChanges()); got != count {
		t.Errorf("%d changes, want %d", got, count)
	}
}

func TestReconcileBaseline_LeaderRepairsNow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	// The first pass of the term ends before this one begins.
	if _, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{}); err != nil {
		t.Fatal(err)
	}
	f.objects.remove("Namespace kube-public")
	edit(f.objects, "Service kubernetes", func(s *corev1.Service) { delete(s.Labels, "provider") })

	before := time.Now()
	got, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &metav1.Plan{Mode: metav1.Mode_MODE_ENFORCE, Changes: []*metav1.Change{{
		Verb:   metav1.Change_VERB_CREATE,
		Object: &metav1.ObjectReference{ApiVersion: "v1", Kind: "Namespace", Name: "kube-public"},
		Reason: "NAMESPACE_MISSING", Message: "system namespace kube-public does not exist", Outcome: metav1.Change_OUTCOME_APPLIED,
	}, {
		Verb:   metav1.Change_VERB_UPDATE,
		Object: &metav1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: "default", Name: "kubernetes"},
		Reason: "SERVICE_DRIFTED", Message: `label provider "", want "kubernetes"`, Outcome: metav1.Change_OUTCOME_APPLIED,
		FieldChanges: []*metav1.FieldChange{{Path: "metadata.labels.provider", After: `"kubernetes"`}},
	}}}
	if diff := cmp.Diff(want, got.GetPlan(), comparingChanges()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if at := got.GetPlan().GetChanges()[0].GetApplyTime().AsTime(); at.Before(before.Truncate(0)) || at.After(time.Now()) {
		t.Errorf("applied at %v, want between %v and now", at, before)
	}
	if source := got.GetSources()[0]; source.GetEpoch() == 0 || len(source.GetShards()) != 1 {
		t.Errorf("source = %v, want that of the leader", source)
	}

	again, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, again.GetPlan(), 0, metav1.Change_OUTCOME_APPLIED)
}

func TestReconcileBaseline_EtagBindsToThePlanThatWasRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	f.objects.failApply(errors.New("denied by a test")) // the loops must not be faster
	f.objects.remove("Namespace kube-public")
	read, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f.objects.remove("Namespace kube-system")
	written := len(f.objects.writes())
	_, err = client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{Etag: read.GetBaseline().GetPlan().GetEtag()})
	wantError(t, err, codes.Aborted, rpcerror.ETagMismatchReason)
	if got := len(f.objects.writes()); got != written {
		t.Errorf("%d writes, want none", got-written)
	}
	f.objects.failApply(nil)
	if read, err = client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{}); err != nil {
		t.Fatal(err)
	}
	got, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{Etag: read.GetBaseline().GetPlan().GetEtag()})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got.GetPlan(), len(read.GetBaseline().GetPlan().GetChanges()), metav1.Change_OUTCOME_APPLIED)
}

// kube-apiserver denies one write: the remaining ones are made, and the answer says which failed.
func TestReconcileBaseline_DeniedWriteIsFailed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	f.objects.beforeApply(func(_ context.Context, step baseline.Change) error {
		if step.Object.GetName() == "kube-public" {
			return errors.New("denied by an admission webhook")
		}
		return nil
	})
	f.objects.remove("Namespace kube-public")
	f.objects.remove("Endpoints kubernetes")
	got, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]metav1.Change_Outcome{}
	for _, change := range got.GetPlan().GetChanges() {
		outcomes[change.GetObject().GetKind()+" "+change.GetError()] = change.GetOutcome()
	}
	if outcome := outcomes["Namespace denied by an admission webhook"]; outcome != metav1.Change_OUTCOME_FAILED {
		t.Errorf("outcomes = %v, want the denied Namespace FAILED", outcomes)
	}
	testkit.Eventually(t, time.Minute, func() error {
		if endpoints, err := f.objects.Endpoints(t.Context()); endpoints == nil || err != nil {
			return fmt.Errorf("endpoints = %v, %v", endpoints, err)
		}
		return nil
	})
}

// The plan in an error says what was written before, what failed and what was skipped.
func TestReconcileBaseline_ErrorAfterWritesHasThePlan(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	f.objects.beforeApply(func(_ context.Context, step baseline.Change) error {
		if step.Kind().Kind == "Namespace" {
			return fmt.Errorf("put: %w", guarded.ErrUnavailable)
		}
		return nil
	})
	f.objects.remove("Namespace kube-public")
	edit(f.objects, "Service kubernetes", func(s *corev1.Service) { delete(s.Labels, "provider") })
	_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.APIServerUnreachableReason)
	outcomes := map[string]metav1.Change_Outcome{}
	for _, detail := range status.Convert(err).Details() {
		if plan, ok := detail.(*metav1.Plan); ok {
			for _, change := range plan.GetChanges() {
				outcomes[change.GetObject().GetKind()] = change.GetOutcome()
			}
		}
	}
	if outcomes["Namespace"] != metav1.Change_OUTCOME_FAILED {
		t.Errorf("outcomes in the error = %v, want the Namespace FAILED", outcomes)
	}
	if outcome, planned := outcomes["Service"]; planned && outcome != metav1.Change_OUTCOME_SKIPPED {
		t.Errorf("outcomes in the error = %v, want the Service SKIPPED unless its loop was faster", outcomes)
	}
}

func TestReconcileBaseline_RepeatedRequestGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	request := &bootstrapv1.ReconcileBaselineRequest{RequestId: "6f8fd4c8-22a4-4a5b-8c3f-0d8f0a1b2c3d"}
	f.objects.remove("Namespace kube-public")
	first, err := client.ReconcileBaseline(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.ReconcileBaseline(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
		t.Errorf("second answer (-first +second):\n%s", diff)
	}
}

func TestReconcileBaseline_DisabledLoopIsSkipped(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "*", "-"+baselinecontroller.ServiceLoop)
	f.start(t)
	t.Cleanup(func() { f.end(t) })
	client := serve(t, f)
	testkit.Eventually(t, time.Minute, func() error {
		_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
		return err
	})
	if service, _ := f.objects.Service(t.Context()); service != nil {
		t.Errorf("service = %v, want none: its loop is disabled", service)
	}
	read, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*metav1.IncompleteReason{{
		Reason: "LOOP_DISABLED",
		Message: "loop kubernetes-service is disabled; 1 changes are not planned: " +
			"service default/kubernetes does not exist; its ClusterIP will be 10.0.0.1",
	}}
	if diff := cmp.Diff(want, read.GetBaseline().GetPlan().GetIncompleteReasons(), protocmp.Transform()); diff != "" {
		t.Errorf("incomplete reasons (-want +got):\n%s", diff)
	}
}

func TestReconcileBaseline_StandbyNamesTheLeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := serve(t, f).ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.NoLeaderReason)
}

func TestReconcileBaseline_TermThatEndsWhileWaitingIsNotLeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	inPass := make(chan struct{})
	f.objects.remove("Namespace kube-public")
	f.objects.beforeApply(func(ctx context.Context, _ baseline.Change) error {
		close(inPass)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	go func() {
		<-inPass
		f.candidate.Lose()
	}()
	_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.NoLeaderReason)
}

func TestReconcileBaseline_EndlessConflictsAreAborted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	f.objects.beforeApply(func(context.Context, baseline.Change) error { return guarded.ErrConflict })
	f.objects.remove("Namespace kube-public")
	_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Aborted, rpcerror.ConflictReason)
}

func TestReconcileBaseline_CancelledCallGetsItsOwnCode(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	release := make(chan struct{})
	f.objects.remove("Namespace kube-public")
	f.objects.beforeApply(func(context.Context, baseline.Change) error {
		<-release
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := client.ReconcileBaseline(ctx, &bootstrapv1.ReconcileBaselineRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error = %v, want DEADLINE_EXCEEDED", err)
	}
	close(release)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	refused := errors.New("secrets of the backend")
	cases := map[string]struct {
		keys, objects error
		code          codes.Code
		reason        rpcerror.Reason
	}{
		"etcd is unavailable": {
			keys: fmt.Errorf("read: %w", apiserverscontroller.ErrUnavailable), code: codes.Unavailable, reason: rpcerror.EtcdUnreachableReason,
		},
		"the kube-apiserver is unavailable": {
			objects: fmt.Errorf("get: %w", guarded.ErrUnavailable), code: codes.Unavailable, reason: rpcerror.APIServerUnreachableReason,
		},
		"the kube-apiserver rejects": {
			objects: refused, code: codes.Internal, reason: rpcerror.InternalReason,
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.keys.fail(test.keys, nil)
			f.objects.failReads(test.objects)
			client := serve(t, f)
			_, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
			wantError(t, err, test.code, test.reason)
			_, err = client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{ValidateOnly: true})
			wantError(t, err, test.code, test.reason)
			if test.keys != nil {
				_, err = client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
				wantError(t, err, test.code, test.reason)
			}
		})
	}
}

func TestErrors_StoppingReplicaIsShuttingDown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	f.stop()
	<-f.leadership.Stopping()
	_, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.ShuttingDownReason)
	_, err = client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.ShuttingDownReason)
	_, err = client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.ShuttingDownReason)
}

func TestWatchBaseline_SendsTheBaselineAndResumes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	client := serve(t, f)
	receive := func(watch grpc.ServerStreamingClient[bootstrapv1.WatchBaselineResponse], want metav1.EventType) *bootstrapv1.WatchBaselineResponse {
		t.Helper()
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetType() != want || event.GetResumeToken() == "" {
			t.Fatalf("event %v, want %s with a resume token", event, want)
		}
		return event
	}
	watch, err := client.WatchBaseline(t.Context(), &bootstrapv1.WatchBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first := receive(watch, metav1.EventType_EVENT_TYPE_ADDED)
	if got := first.GetBaseline(); got.GetName() != "baseline" || len(got.GetPlan().GetChanges()) != 7 {
		t.Errorf("first event has %v, want the baseline with its plan", got)
	}
	if end := receive(watch, metav1.EventType_EVENT_TYPE_BOOKMARK); !end.GetBookmark().GetInitialEventsEnd() {
		t.Errorf("bookmark = %v, want the end of the initial events", end)
	}
	f.keys.put(readyPeer("10.1.0.3"))
	changed := receive(watch, metav1.EventType_EVENT_TYPE_MODIFIED)
	if got := changed.GetBaseline().GetKubernetesService().GetDesiredAddresses(); len(got) != 2 {
		t.Errorf("desired addresses after the change are %v, want two", got)
	}
	resumed, err := client.WatchBaseline(t.Context(), &bootstrapv1.WatchBaselineRequest{ResumeToken: first.GetResumeToken()})
	if err != nil {
		t.Fatal(err)
	}
	receive(resumed, metav1.EventType_EVENT_TYPE_MODIFIED)
	receive(resumed, metav1.EventType_EVENT_TYPE_BOOKMARK)
	current, err := client.WatchBaseline(t.Context(), &bootstrapv1.WatchBaselineRequest{ResumeToken: changed.GetResumeToken()})
	if err != nil {
		t.Fatal(err)
	}
	receive(current, metav1.EventType_EVENT_TYPE_BOOKMARK)
}
