package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	apiv1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/test/lab/bootstraptest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// auditOff disables automatic repairs.
func auditOff(cfg *bootstrapsvc.Config) { cfg.Audit.AutoRepair = bootstrapsvc.AutoRepairOff }

func TestMain(m *testing.M) { testkit.Main(m) }

// replica is a replica with the clients of its RPCs of findings and repairs.
type replica struct {
	*bootstraptest.Replica
	bootstrapv1.FindingServiceClient
	bootstrapv1.RepairServiceClient
}

func startReplica(t *testing.T, address string, options ...func(*bootstrapsvc.Config)) *replica {
	t.Helper()
	return start(t, bootstraptest.Options{Address: address}, options...)
}

func start(t *testing.T, o bootstraptest.Options, options ...func(*bootstrapsvc.Config)) *replica {
	t.Helper()
	o.Configure = func(cfg *bootstrapsvc.Config) {
		for _, option := range options {
			option(cfg)
		}
	}
	r := bootstraptest.Start(t, o)
	connection := r.Connect(t)
	return &replica{r, bootstrapv1.NewFindingServiceClient(connection), bootstrapv1.NewRepairServiceClient(connection)}
}

// audited waits until a replica leads and has made its first pass.
func audited(t *testing.T, client *replica) {
	t.Helper()
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		_, err := client.AuditAllocations(t.Context(), &bootstrapv1.AuditAllocationsRequest{})
		return err
	})
}

func nodePortService(t *testing.T, kube kubernetes.Interface) *corev1.Service {
	t.Helper()
	service, err := kube.CoreV1().Services(testkit.Namespace(t, kube)).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "audited"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service
}

// setBit writes the bit of a node port into the stored bitmap.
func setBit(t *testing.T, port int32, value uint) {
	t.Helper()
	etcd := testkit.Etcd(t)
	const key = "/registry/ranges/servicenodeports"
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		response, err := etcd.Get(t.Context(), key)
		if err != nil {
			return err
		}
		decoded, err := rangestore.Decode(response.Kvs[0].Value)
		if err != nil {
			return err
		}
		bits := new(big.Int).SetBytes(decoded.Data())
		encoded, err := decoded.With(bits.SetBit(bits, int(port)-30000, value).Bytes()).Encode()
		if err != nil {
			return err
		}
		_, err = etcd.Put(t.Context(), key, string(encoded))
		return err
	})
}

func bitOf(t *testing.T, port int32) uint {
	t.Helper()
	value, err := rangestore.New(testkit.Etcd(t), "/registry").Read(t.Context(), rangestore.NodePorts)
	if err != nil {
		t.Fatal(err)
	}
	return new(big.Int).SetBytes(value.Range.Data()).Bit(int(port) - 30000)
}

func TestAuditReal_UsedAllocationIsRestoredAtOnce(t *testing.T) {
	client := startReplica(t, "10.99.20.1")
	kube := testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	address := service.Spec.ClusterIP
	if err := kube.NetworkingV1().IPAddresses().Delete(t.Context(), address, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		_, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
		return err
	})
	t.Logf("an IPAddress in use was restored after %s", time.Since(begin).Round(time.Millisecond))
	again, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if parent := again.Spec.ParentRef; parent.Resource != "services" || parent.Namespace != service.Namespace || parent.Name != service.Name ||
		again.Labels[networkingv1.LabelManagedBy] != "ipallocator.k8s.io" || again.Labels[networkingv1.LabelIPAddressFamily] != "IPv4" {
		t.Errorf("IPAddress is %+v", again)
	}
	port := service.Spec.Ports[0].NodePort
	setBit(t, port, 0)
	begin = time.Now()
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		if bitOf(t, port) == 0 {
			return fmt.Errorf("port %d is not allocated", port)
		}
		return nil
	})
	t.Logf("a node port in use was restored after %s", time.Since(begin).Round(time.Millisecond))
	testkit.Eventually(t, bootstraptest.Soon, func() error { return ended(t, client, address, bootstrapv1.Finding_STATE_REPAIRED) })
	testkit.Eventually(t, bootstraptest.Soon, func() error { return ended(t, client, fmt.Sprint(port), bootstrapv1.Finding_STATE_REPAIRED) })
}

// ended returns an error unless a finding about the subject has ended in this state.
func ended(t *testing.T, client *replica, subject string, state bootstrapv1.Finding_State) error {
	found, err := findingsOf(t, client, subject)
	if err != nil || slices.ContainsFunc(found, func(f *bootstrapv1.Finding) bool { return f.GetState() == state }) {
		return err
	}
	return fmt.Errorf("findings of %s are %v", subject, found)
}

// findingsOf returns the findings of a subject in all states.
func findingsOf(t *testing.T, client *replica, subject string) ([]*bootstrapv1.Finding, error) {
	all := &bootstrapv1.ListFindingsRequest{}
	for number := range bootstrapv1.Finding_State_name {
		if number != 0 {
			all.States = append(all.States, bootstrapv1.Finding_State(number))
		}
	}
	answer, err := client.ListFindings(t.Context(), all)
	return slices.DeleteFunc(answer.GetFindings(), func(f *bootstrapv1.Finding) bool { return f.GetSubject() != subject }), err
}

// kube-apiserver compares the texts, so it deletes the IPAddress that it creates for such a
// Service.
func TestAuditReal_AddressWithLeadingZerosIsReported(t *testing.T) {
	client := startReplica(t, "10.99.26.1")
	kube, ctx := testkit.Kube(t), t.Context()
	service := nodePortService(t, kube)
	t.Cleanup(func() {
		_ = kube.CoreV1().Services(service.Namespace).Delete(context.WithoutCancel(ctx), service.Name, metav1.DeleteOptions{})
	})
	audited(t, client)
	address := service.Spec.ClusterIP
	written := "0" + address
	service.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	service.ResourceVersion, service.Spec.ClusterIP, service.Spec.ClusterIPs = "", written, []string{written}
	encoded, err := json.Marshal(service)
	if err != nil {
		t.Fatal(err)
	}
	addresses := kube.NetworkingV1().IPAddresses()
	before, err := addresses.Get(ctx, address, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// An earlier kube-apiserver accepted it.
	if _, err := testkit.Etcd(t).Put(ctx, "/registry/services/specs/"+service.Namespace+"/"+service.Name, string(encoded)); err != nil {
		t.Fatal(err)
	}
	open := openFinding(t, client, "INVALID", service.Namespace+"/"+service.Name)
	if !strings.Contains(open.GetMessage(), written) || open.GetRepairMode() != bootstrapv1.Finding_REPAIR_MODE_MANUAL {
		t.Errorf("finding is %v", open)
	}
	deleteAddress(t, address)
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		now, err := addresses.Get(ctx, address, metav1.GetOptions{})
		if err != nil || now.UID == before.UID {
			return fmt.Errorf("the IPAddress of %s is %v, %w", written, now, err)
		}
		return nil
	})
	again, err := addresses.Get(ctx, address, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		if now, err := addresses.Get(ctx, address, metav1.GetOptions{}); err == nil && now.UID == again.UID {
			return fmt.Errorf("kube-apiserver keeps the IPAddress of %s", written)
		}
		return nil
	})
	t.Logf("kube-apiserver deleted the IPAddress after %s", time.Since(begin).Round(time.Second))
	openFinding(t, client, "INVALID", service.Namespace+"/"+service.Name)
}

// With another prefix, or with the etcd of another cluster, the ranges are not missing but foreign.
func TestAuditReal_RangesOfAnotherClusterAreNotAudited(t *testing.T) {
	client := startReplica(t, "10.99.24.1", func(cfg *bootstrapsvc.Config) { cfg.EtcdPrefix = "/elsewhere" })
	audited(t, client)
	answer, err := client.AuditAllocations(t.Context(), &bootstrapv1.AuditAllocationsRequest{})
	if err != nil || answer.GetFindingCount() != 0 {
		t.Fatalf("audit: %v, %v, want no finding", answer, err)
	}
	for _, store := range answer.GetStores() {
		if store.GetStore() == bootstrapv1.Store_STORE_NODE_PORTS &&
			(store.GetPresent() || !strings.Contains(store.GetError(), "/elsewhere/services/specs/default/kubernetes")) {
			t.Errorf("node ports: %v, want them marked as those of another cluster", store)
		}
	}
}

// openFinding waits until there is an open finding about the subject.
func openFinding(t *testing.T, client *replica, code, subject string) *bootstrapv1.Finding {
	t.Helper()
	var open *bootstrapv1.Finding
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		answer, err := client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{
			Codes: []string{code}, States: []bootstrapv1.Finding_State{bootstrapv1.Finding_STATE_OPEN},
		})
		if err != nil {
			return err
		}
		for _, finding := range answer.GetFindings() {
			if finding.GetSubject() == subject {
				open = finding
				return nil
			}
		}
		return fmt.Errorf("findings are %v", answer.GetFindings())
	})
	return open
}

// awaitRepaired waits until a leader has repaired the deleted address. kube-apiserver restores
// addresses, too, every three minutes: then nothing is found, and it is deleted again.
func awaitRepaired(t *testing.T, client *replica, address string) {
	t.Helper()
	addresses := testkit.Kube(t).NetworkingV1().IPAddresses()
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		if found, err := findingsOf(t, client, address); err != nil || len(found) > 0 {
			return errors.Join(err, ended(t, client, address, bootstrapv1.Finding_STATE_REPAIRED))
		}
		if _, err := addresses.Get(t.Context(), address, metav1.GetOptions{}); err == nil {
			deleteAddress(t, address)
		}
		return fmt.Errorf("nothing is found about %s", address)
	})
}

func deleteAddress(t *testing.T, address string) {
	t.Helper()
	if err := testkit.Kube(t).NetworkingV1().IPAddresses().Delete(t.Context(), address, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAuditReal_PlanIsAppliedOnceAndKept(t *testing.T) {
	client := startReplica(t, "10.99.21.1", auditOff)
	kube := testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	address := service.Spec.ClusterIP
	deleteAddress(t, address)
	open := openFinding(t, client, "NOT_ALLOCATED", address)
	ctx := t.Context()
	explained, err := client.ExplainFinding(ctx, &bootstrapv1.ExplainFindingRequest{Name: open.GetName()})
	if err != nil || explained.BrokenIndex == nil || explained.GetEvidence()[explained.GetBrokenIndex()].GetResult() != apiv1.Evidence_RESULT_FAILED {
		t.Errorf("explanation is %v, %v", explained, err)
	}
	repairs, err := client.ListRepairs(ctx, &bootstrapv1.ListRepairsRequest{})
	if err != nil || len(repairs.GetRepairs()) != 0 || repairs.GetResumeToken() == "" {
		t.Errorf("repairs are %v, %v, want none", repairs, err)
	}
	created, err := client.CreateRepairPlan(ctx, &bootstrapv1.CreateRepairPlanRequest{Findings: []string{open.GetName()}})
	if err != nil {
		t.Fatal(err)
	}
	plan := created.GetRepairPlan()
	if len(plan.GetSteps()) != 1 || plan.GetName() == "" || plan.GetExpireTime() == nil || plan.GetRepair() != "" {
		t.Fatalf("plan is %v", plan)
	}
	_, err = client.ApplyRepairPlan(ctx, &bootstrapv1.ApplyRepairPlanRequest{Name: plan.GetName(), Etag: "other"})
	if status.Code(err) != codes.Aborted || rpcerror.ReasonOf(err) != rpcerror.ETagMismatchReason {
		t.Errorf("apply with another etag = %v", err)
	}
	apply := &bootstrapv1.ApplyRepairPlanRequest{Name: plan.GetName(), Etag: plan.GetEtag()}
	first, err := client.ApplyRepairPlan(ctx, apply)
	if err != nil {
		t.Fatal(err)
	}
	repair := first.GetRepair()
	if repair.GetState() != bootstrapv1.Repair_STATE_SUCCEEDED || repair.GetPlan() != plan.GetName() ||
		repair.GetSteps()[0].GetChange().GetOutcome() != apiv1.Change_OUTCOME_APPLIED || repair.GetAttemptCount() != 1 {
		t.Errorf("repair is %v", repair)
	}
	if _, err := kube.NetworkingV1().IPAddresses().Get(ctx, address, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	again, err := client.ApplyRepairPlan(ctx, apply)
	if err != nil || again.GetRepair().GetEtag() != repair.GetEtag() {
		t.Errorf("applied twice: %v, %v, want %v", again.GetRepair(), err, repair)
	}
	got, err := client.GetRepair(ctx, &bootstrapv1.GetRepairRequest{Name: repair.GetName()})
	if err != nil || got.GetRepair().GetEtag() != repair.GetEtag() {
		t.Errorf("stored repair is %v, %v, want %v", got.GetRepair(), err, repair)
	}
	stored, err := client.GetRepairPlan(ctx, &bootstrapv1.GetRepairPlanRequest{Name: plan.GetName()})
	if err != nil || stored.GetRepairPlan().GetRepair() != repair.GetName() {
		t.Errorf("stored plan is %v, %v, want its repair", stored.GetRepairPlan(), err)
	}
	history, err := client.ListRepairs(ctx, &bootstrapv1.ListRepairsRequest{States: []bootstrapv1.Repair_State{bootstrapv1.Repair_STATE_SUCCEEDED}})
	if err != nil || len(history.GetRepairs()) != 1 || history.GetRepairs()[0].GetName() != repair.GetName() {
		t.Errorf("history is %v, %v", history.GetRepairs(), err)
	}
	_, err = client.CancelRepair(ctx, &bootstrapv1.CancelRepairRequest{Name: repair.GetName()})
	if status.Code(err) != codes.FailedPrecondition || rpcerror.ReasonOf(err) != api.RepairNotCancellable {
		t.Errorf("cancel of an ended repair = %v", err)
	}
	wantRepairEvents(t, client, repairs.GetResumeToken(), repair.GetName())
}

// wantRepairEvents wants a watch that resumes before a repair to deliver its last state.
func wantRepairEvents(t *testing.T, client *replica, token, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootstraptest.Soon)
	defer cancel()
	stream, err := client.WatchRepairs(ctx, &bootstrapv1.WatchRepairsRequest{ResumeToken: token})
	if err != nil {
		t.Fatal(err)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			t.Fatalf("before %s has succeeded: %v", name, err)
		}
		if event.GetRepair().GetName() == name && event.GetRepair().GetState() == bootstrapv1.Repair_STATE_SUCCEEDED {
			return
		}
	}
}

func TestAuditReal_DriftedPlanIsRejected(t *testing.T) {
	client := startReplica(t, "10.99.22.1", auditOff)
	kube := testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	port := service.Spec.Ports[0].NodePort
	setBit(t, port, 0)
	open := openFinding(t, client, "NOT_ALLOCATED", fmt.Sprint(port))
	created, err := client.CreateRepairPlan(t.Context(), &bootstrapv1.CreateRepairPlanRequest{Findings: []string{open.GetName()}})
	if err != nil {
		t.Fatal(err)
	}
	plan := created.GetRepairPlan()
	err = kube.CoreV1().Services(service.Namespace).Delete(t.Context(), service.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		_, err := kube.CoreV1().Services(service.Namespace).Get(t.Context(), service.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("service is still there: %v", err)
		}
		return nil
	})
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		_, err = client.ApplyRepairPlan(t.Context(), &bootstrapv1.ApplyRepairPlanRequest{Name: plan.GetName(), Etag: plan.GetEtag()})
		if status.Code(err) != codes.Aborted || rpcerror.ReasonOf(err) != api.PlanDrifted {
			return fmt.Errorf("apply = %v, want %s", err, api.PlanDrifted)
		}
		return nil
	})
}

func TestAuditReal_IgnoredFindingStaysIgnoredAtTheNextLeader(t *testing.T) {
	client := startReplica(t, "10.99.25.1", auditOff)
	kube := testkit.Kube(t)
	service, another, later := nodePortService(t, kube), nodePortService(t, kube), nodePortService(t, kube)
	audited(t, client)
	deleteAddress(t, service.Spec.ClusterIP)
	deleteAddress(t, another.Spec.ClusterIP)
	open := openFinding(t, client, "NOT_ALLOCATED", service.Spec.ClusterIP)
	openFinding(t, client, "NOT_ALLOCATED", another.Spec.ClusterIP)
	ignored, err := client.IgnoreFinding(t.Context(), &bootstrapv1.IgnoreFindingRequest{Name: open.GetName(), Etag: open.GetEtag(), Comment: "known"})
	if err != nil || ignored.GetFinding().GetState() != bootstrapv1.Finding_STATE_IGNORED || ignored.GetFinding().GetIgnore().GetComment() != "known" {
		t.Fatalf("ignored: %v, %v", ignored, err)
	}
	_, err = client.IgnoreFinding(t.Context(), &bootstrapv1.IgnoreFindingRequest{Name: open.GetName(), Etag: open.GetEtag()})
	if status.Code(err) != codes.Aborted || rpcerror.ReasonOf(err) != rpcerror.ETagMismatchReason {
		t.Errorf("ignored with an old etag = %v", err)
	}
	client.End(t)
	next := startReplica(t, "10.99.25.2")
	audited(t, next)
	// Findings that are not ignored are repaired automatically: one that the leader found with the
	// ignored one, and one of a later repair.
	awaitRepaired(t, next, another.Spec.ClusterIP)
	deleteAddress(t, later.Spec.ClusterIP)
	awaitRepaired(t, next, later.Spec.ClusterIP)
	finding, err := next.GetFinding(t.Context(), &bootstrapv1.GetFindingRequest{Name: open.GetName()})
	if err != nil || finding.GetFinding().GetState() != bootstrapv1.Finding_STATE_IGNORED {
		t.Errorf("at the next leader the finding is %v, %v", finding.GetFinding(), err)
	}
	none, err := next.UnignoreFinding(t.Context(), &bootstrapv1.UnignoreFindingRequest{Name: open.GetName()})
	if err != nil || none.GetFinding().GetIgnore() != nil {
		t.Errorf("the mark was taken away: %v, %v", none.GetFinding(), err)
	}
	testkit.Eventually(t, bootstraptest.Soon, func() error { return ended(t, next, service.Spec.ClusterIP, bootstrapv1.Finding_STATE_REPAIRED) })
}

func TestAuditReal_WatchSendsAddedAndDeletedFindings(t *testing.T) {
	client := startReplica(t, "10.99.23.1")
	kube := testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), bootstraptest.Soon)
	defer cancel()
	stream, err := client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	token := ""
	for token == "" {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetBookmark().GetInitialEventsEnd() {
			token = event.GetResumeToken()
		}
	}
	deleteAddress(t, service.Spec.ClusterIP)
	var types []apiv1.EventType
	var last *bootstrapv1.Finding
	for len(types) == 0 || types[len(types)-1] != apiv1.EventType_EVENT_TYPE_DELETED {
		event, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", types, err)
		}
		if event.GetFinding().GetSubject() == service.Spec.ClusterIP {
			types, last = append(types, event.GetType()), event.GetFinding()
		}
	}
	if types[0] != apiv1.EventType_EVENT_TYPE_ADDED || last.GetState() != bootstrapv1.Finding_STATE_REPAIRED {
		t.Errorf("events are %v, the last state is %v", types, last)
	}
	wantResumedFinding(t, client, token, service.Spec.ClusterIP)
	wantExpired, err := client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{ResumeToken: token, Codes: []string{"LEAKED"}})
	if err == nil {
		_, err = wantExpired.Recv()
	}
	if status.Code(err) != codes.OutOfRange || rpcerror.ReasonOf(err) != rpcerror.ResumeTokenExpiredReason {
		t.Errorf("a token of another watch = %v", err)
	}
}

// wantResumedFinding wants a watch of ended findings to have the finding about the subject.
func wantResumedFinding(t *testing.T, client *replica, unfiltered, subject string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootstraptest.Soon)
	defer cancel()
	stream, err := client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{ResumeToken: unfiltered})
	if err != nil {
		t.Fatal(err)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetFinding().GetSubject() == subject && event.GetFinding().GetState() != bootstrapv1.Finding_STATE_REPAIRED {
			t.Errorf("the resumed watch sends %v", event)
		}
		if event.GetBookmark() != nil {
			break
		}
	}
	ended, err := client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{States: []bootstrapv1.Finding_State{bootstrapv1.Finding_STATE_REPAIRED}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		event, err := ended.Recv()
		if err != nil {
			t.Fatalf("the watch of repaired findings: %v", err)
		}
		if event.GetFinding().GetSubject() == subject {
			return
		}
	}
}
