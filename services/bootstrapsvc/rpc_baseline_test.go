package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// serve serves the RPCs of a fixture through the production interceptors.
func serve(t *testing.T, f *fixture) bootstrapv1.BootstrapServiceClient {
	t.Helper()
	return bootstrapv1.NewBootstrapServiceClient(testkit.Serve(t, f.Register))
}

// lead runs the fixture until the test ends, and returns once the baseline is complete.
func lead(t *testing.T, f *fixture) {
	t.Helper()
	f.start(t)
	t.Cleanup(func() { f.end(t) })
	testkit.Eventually(t, 10*time.Second, func() error {
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

func ignoringFreshness() cmp.Option {
	return cmp.Options{
		protocmp.Transform(),
		protocmp.IgnoreMessages(&statusv1.Freshness{}),
		protocmp.IgnoreFields(&statusv1.ObjectReference{}, "uid"),
	}
}

func TestGetBaseline_EmptyCluster(t *testing.T) {
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	created := func(apiVersion, kind, namespace, name, reason, detail string) *statusv1.Change {
		return &statusv1.Change{
			Verb:   statusv1.Change_VERB_CREATE,
			Object: &statusv1.ObjectReference{ApiVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name},
			Reason: reason, Detail: detail,
		}
	}
	want := &bootstrapv1.GetBaselineResponse{Baseline: &bootstrapv1.Baseline{
		Namespaces: []*bootstrapv1.Baseline_Namespace{
			{Name: "default"}, {Name: "kube-node-lease"}, {Name: "kube-public"}, {Name: "kube-system"},
		},
		KubernetesService:  &bootstrapv1.Baseline_KubernetesService{DesiredAddresses: []string{"10.1.0.2"}},
		EndpointReconciler: "lease",
		ServiceCidr:        &bootstrapv1.Baseline_ServiceCIDR{Exists: true, Cidrs: []string{"10.0.0.0/16"}, Ready: true},
		Changes: []*statusv1.Change{
			created("v1", "Namespace", "", "default", "NAMESPACE_MISSING", "system namespace default does not exist"),
			created("v1", "Namespace", "", "kube-node-lease", "NAMESPACE_MISSING", "system namespace kube-node-lease does not exist"),
			created("v1", "Namespace", "", "kube-public", "NAMESPACE_MISSING", "system namespace kube-public does not exist"),
			created("v1", "Namespace", "", "kube-system", "NAMESPACE_MISSING", "system namespace kube-system does not exist"),
			created("v1", "Service", "default", "kubernetes", "SERVICE_MISSING",
				"service default/kubernetes does not exist; its ClusterIP will be 10.0.0.1"),
			created("discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes", "ENDPOINT_SLICE_MISSING",
				"endpointslice default/kubernetes does not exist; it will hold 10.1.0.2"),
			created("v1", "Endpoints", "default", "kubernetes", "ENDPOINTS_MISSING",
				"endpoints default/kubernetes do not exist; they will hold 10.1.0.2"),
		},
	}}
	got, err := serve(t, f).GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, ignoringFreshness(), protocmp.IgnoreFields(&bootstrapv1.GetBaselineResponse{}, "freshness")); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if freshness := got.GetFreshness(); freshness.GetReplicaId() != "self-1" || freshness.GetEpoch() != 0 || freshness.GetReadTime() == nil {
		t.Errorf("freshness = %v, want that of replica self-1 without a term", freshness)
	}
}

func TestGetBaseline_SettledCluster(t *testing.T) {
	f := newFixture(t)
	lead(t, f)
	want := &bootstrapv1.Baseline{
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
	}
	got, err := serve(t, f).GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.GetBaseline(), protocmp.Transform()); diff != "" {
		t.Errorf("baseline (-want +got):\n%s", diff)
	}
	if got.GetFreshness().GetEpoch() == 0 {
		t.Error("freshness has no epoch although a term is held")
	}
}

func TestGetBaseline_ProblemsAreListedWithTheirObject(t *testing.T) {
	f := newFixture(t)
	lead(t, f)
	edit(f.objects, "Namespace kube-public", func(n *corev1.Namespace) {
		n.Status.Phase = corev1.NamespaceTerminating
		n.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	})
	f.objects.keepCIDR(func(c *baseline.ServiceCIDR) { c.Object.Status.Conditions = nil })
	got, err := serve(t, f).GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	public := &bootstrapv1.Baseline_Namespace{Name: "kube-public", Exists: true, Phase: "Terminating", Problems: []string{
		"system namespace kube-public is being deleted; it is created again afterwards; it waits for: finalizers kubernetes",
	}}
	if diff := cmp.Diff(public, got.GetBaseline().GetNamespaces()[2], protocmp.Transform()); diff != "" {
		t.Errorf("namespace (-want +got):\n%s", diff)
	}
	cidr := &bootstrapv1.Baseline_ServiceCIDR{Exists: true, Cidrs: []string{"10.0.0.0/16"}, Problems: []string{
		"servicecidr kubernetes is not ready, so no ClusterIP is allocated from it: it has no Ready condition yet",
	}}
	if diff := cmp.Diff(cidr, got.GetBaseline().GetServiceCidr(), protocmp.Transform()); diff != "" {
		t.Errorf("servicecidr (-want +got):\n%s", diff)
	}
	var reasons []string
	for _, c := range got.GetBaseline().GetChanges() {
		reasons = append(reasons, c.GetVerb().String()+" "+c.GetObject().GetKind()+" "+c.GetReason())
	}
	want := []string{"VERB_REPORT Namespace NAMESPACE_TERMINATING", "VERB_REPORT ServiceCIDR SERVICE_CIDR_NOT_READY"}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestReconcileBaseline_ValidateOnlyWritesNothingAndNeedsNoTerm(t *testing.T) {
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	got, err := serve(t, f).ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{ValidateOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetChanges()) != 7 || got.GetApplied() {
		t.Errorf("%d changes, applied = %t, want 7 that are not applied", len(got.GetChanges()), got.GetApplied())
	}
	if written := f.objects.writes(); len(written) != 0 {
		t.Errorf("wrote %v", written)
	}
}

func TestReconcileBaseline_LeaderRepairsNow(t *testing.T) {
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	f.objects.remove("Namespace kube-public")
	edit(f.objects, "Service kubernetes", func(s *corev1.Service) { delete(s.Labels, "provider") })

	got, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &bootstrapv1.ReconcileBaselineResponse{
		Applied: true,
		Changes: []*statusv1.Change{{
			Verb:   statusv1.Change_VERB_CREATE,
			Object: &statusv1.ObjectReference{ApiVersion: "v1", Kind: "Namespace", Name: "kube-public"},
			Reason: "NAMESPACE_MISSING", Detail: "system namespace kube-public does not exist",
		}, {
			Verb:   statusv1.Change_VERB_UPDATE,
			Object: &statusv1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: "default", Name: "kubernetes"},
			Reason: "SERVICE_DRIFTED", Detail: `label provider "", want "kubernetes"`,
		}},
	}
	if diff := cmp.Diff(want, got, ignoringFreshness(), protocmp.IgnoreFields(&bootstrapv1.ReconcileBaselineResponse{}, "freshness")); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}

	again, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	if err != nil || len(again.GetChanges()) != 0 || !again.GetApplied() {
		t.Errorf("second call = %v, %v, want nothing to do", again, err)
	}
}

func TestReconcileBaseline_DisabledLoopIsSkipped(t *testing.T) {
	f := newFixture(t, "*", "-"+baselinecontroller.ServiceLoop)
	f.start(t)
	t.Cleanup(func() { f.end(t) })
	client := serve(t, f)
	testkit.Eventually(t, 10*time.Second, func() error {
		_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
		return err
	})
	if service, _ := f.objects.Service(t.Context()); service != nil {
		t.Errorf("service = %v, want none: its loop is disabled", service)
	}
}

func TestReconcileBaseline_StandbyNamesTheLeader(t *testing.T) {
	f := newFixture(t)
	_, err := serve(t, f).ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.NotLeaderReason)
}

func TestReconcileBaseline_TermThatEndsWhileWaitingIsNotLeader(t *testing.T) {
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	inPass := make(chan struct{})
	f.objects.remove("Namespace kube-public")
	f.objects.before = func(ctx context.Context, _ baseline.Change) error {
		close(inPass)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	go func() {
		<-inPass
		f.candidate.Lose()
	}()
	_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Unavailable, rpcerror.NotLeaderReason)
}

func TestReconcileBaseline_EndlessConflictsAreAborted(t *testing.T) {
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	f.objects.before = func(context.Context, baseline.Change) error { return guarded.ErrConflict }
	f.objects.remove("Namespace kube-public")
	_, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
	wantError(t, err, codes.Aborted, api.Conflict)
}

func TestReconcileBaseline_CancelledCallGetsItsOwnCode(t *testing.T) {
	f := newFixture(t)
	lead(t, f)
	client := serve(t, f)
	release := make(chan struct{})
	f.objects.remove("Namespace kube-public")
	f.objects.before = func(context.Context, baseline.Change) error {
		<-release
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := client.ReconcileBaseline(ctx, &bootstrapv1.ReconcileBaselineRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error = %v, want DEADLINE_EXCEEDED", err)
	}
	close(release)
}

func TestErrors(t *testing.T) {
	refused := errors.New("secrets of the backend")
	cases := map[string]struct {
		keys, objects error
		code          codes.Code
		reason        rpcerror.Reason
	}{
		"etcd is unavailable": {
			keys: fmt.Errorf("read: %w", apiserverscontroller.ErrUnavailable), code: codes.Unavailable, reason: api.EtcdUnreachable,
		},
		"the kube-apiserver is unavailable": {
			objects: fmt.Errorf("get: %w", guarded.ErrUnavailable), code: codes.Unavailable, reason: api.APIServerUnreachable,
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
