package bootstrapsvc_test

import (
	"context"
	"fmt"
	"math/big"
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
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// auditOff disables automatic repairs.
func auditOff(cfg *bootstrapsvc.Config) { cfg.Audit.AutoRepair = bootstrapsvc.AutoRepairOff }

// audited waits until a replica leads and has made its first pass.
func audited(t *testing.T, client bootstrapv1.BootstrapServiceClient) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		_, err := client.Audit(t.Context(), &bootstrapv1.AuditRequest{})
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
	testkit.Eventually(t, soon, func() error {
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
	r := startReplica(t, "10.99.20.1")
	client, kube := r.client(t), testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	address := service.Spec.ClusterIP
	if err := kube.NetworkingV1().IPAddresses().Delete(t.Context(), address, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	testkit.Eventually(t, soon, func() error {
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
	testkit.Eventually(t, soon, func() error {
		if bitOf(t, port) == 0 {
			return fmt.Errorf("port %d is not allocated", port)
		}
		return nil
	})
	t.Logf("a node port in use was restored after %s", time.Since(begin).Round(time.Millisecond))
	testkit.Eventually(t, soon, func() error { return ended(t, client, address, bootstrapv1.Finding_STATE_REPAIRED) })
	testkit.Eventually(t, soon, func() error { return ended(t, client, fmt.Sprint(port), bootstrapv1.Finding_STATE_REPAIRED) })
}

// ended returns an error unless a finding about the subject has ended in this state.
func ended(t *testing.T, client bootstrapv1.BootstrapServiceClient, subject string, state bootstrapv1.Finding_State) error {
	answer, err := client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{ShowEnded: true})
	if err != nil {
		return err
	}
	for _, finding := range answer.GetFindings() {
		if finding.GetSubject() == subject && finding.GetState() == state {
			return nil
		}
	}
	return fmt.Errorf("findings are %v", answer.GetFindings())
}

// With another prefix, or with the etcd of another cluster, the ranges are not missing but foreign.
func TestAuditReal_RangesOfAnotherClusterAreNotAudited(t *testing.T) {
	r := startReplica(t, "10.99.24.1", func(cfg *bootstrapsvc.Config) { cfg.EtcdPrefix = "/elsewhere" })
	client := r.client(t)
	audited(t, client)
	answer, err := client.Audit(t.Context(), &bootstrapv1.AuditRequest{})
	if err != nil || answer.GetFindings() != 0 {
		t.Fatalf("audit: %v, %v, want no finding", answer, err)
	}
	for _, store := range answer.GetStores() {
		if store.GetStore() == bootstrapv1.Finding_STORE_NODE_PORTS &&
			(store.GetPresent() || !strings.Contains(store.GetProblem(), "/elsewhere/services/specs/default/kubernetes")) {
			t.Errorf("node ports: %v, want them marked as those of another cluster", store)
		}
	}
}

func TestAuditReal_PlanIsAppliedOnceAndKept(t *testing.T) {
	r := startReplica(t, "10.99.21.1", auditOff)
	client, kube := r.client(t), testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	address := service.Spec.ClusterIP
	if err := kube.NetworkingV1().IPAddresses().Delete(t.Context(), address, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var open *bootstrapv1.Finding
	testkit.Eventually(t, soon, func() error {
		answer, err := client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{Code: bootstrapv1.Finding_CODE_NOT_ALLOCATED})
		if err != nil {
			return err
		}
		for _, finding := range answer.GetFindings() {
			if finding.GetSubject() == address && finding.GetState() == bootstrapv1.Finding_STATE_OPEN {
				open = finding
				return nil
			}
		}
		return fmt.Errorf("findings are %v", answer.GetFindings())
	})
	plan, err := client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{Names: []string{open.GetName()}})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.GetSteps()) != 1 || plan.GetToken() == "" || plan.GetExpireTime() == nil {
		t.Fatalf("plan is %v", plan)
	}
	first, err := client.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
	if err != nil {
		t.Fatal(err)
	}
	if repair := first.GetRepair(); !repair.GetComplete() || repair.GetSteps()[0].GetState() != bootstrapv1.RepairStep_STATE_DONE {
		t.Errorf("repair is %v", repair)
	}
	if _, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	again, err := client.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
	if err != nil || again.GetRepair().GetName() != first.GetRepair().GetName() {
		t.Errorf("applied twice: %v, %v, want %s", again.GetRepair(), err, first.GetRepair().GetName())
	}
	history, err := client.ListRepairs(t.Context(), &bootstrapv1.ListRepairsRequest{})
	if err != nil || len(history.GetRepairs()) != 1 || history.GetRepairs()[0].GetName() != first.GetRepair().GetName() {
		t.Errorf("history is %v, %v", history.GetRepairs(), err)
	}
	_, err = client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{Names: []string{"findings/none"}})
	if status.Code(err) != codes.NotFound || rpcerror.ReasonOf(err) != api.FindingNotFound {
		t.Errorf("plan for a missing finding = %v", err)
	}
}

func TestAuditReal_DriftedPlanIsRejected(t *testing.T) {
	r := startReplica(t, "10.99.22.1", auditOff)
	client, kube := r.client(t), testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	port := service.Spec.Ports[0].NodePort
	setBit(t, port, 0)
	var plan *bootstrapv1.PlanRepairResponse
	testkit.Eventually(t, soon, func() error {
		var err error
		plan, err = client.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{})
		if err == nil && len(plan.GetSteps()) == 0 {
			err = fmt.Errorf("plan is %v", plan)
		}
		return err
	})
	err := kube.CoreV1().Services(service.Namespace).Delete(t.Context(), service.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, soon, func() error {
		_, err := kube.CoreV1().Services(service.Namespace).Get(t.Context(), service.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("service is still there: %v", err)
		}
		return nil
	})
	testkit.Eventually(t, soon, func() error {
		_, err = client.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
		if rpcerror.ReasonOf(err) != api.RepairDrifted {
			return fmt.Errorf("apply = %v, want %s", err, api.RepairDrifted)
		}
		return nil
	})
	_, err = client.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: "invalid"})
	if status.Code(err) != codes.InvalidArgument || rpcerror.ReasonOf(err) != api.InvalidRepairToken {
		t.Errorf("apply of an invalid token = %v", err)
	}
}

func TestAuditReal_WatchSendsAddedAndDeletedFindings(t *testing.T) {
	r := startReplica(t, "10.99.23.1")
	client, kube := r.client(t), testkit.Kube(t)
	service := nodePortService(t, kube)
	audited(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	stream, err := client.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetType() == bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK {
			break
		}
	}
	if err := kube.NetworkingV1().IPAddresses().Delete(t.Context(), service.Spec.ClusterIP, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var types []bootstrapv1.WatchFindingsResponse_Type
	for len(types) == 0 || types[len(types)-1] != bootstrapv1.WatchFindingsResponse_TYPE_DELETED {
		event, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", types, err)
		}
		if event.GetFinding().GetSubject() == service.Spec.ClusterIP {
			types = append(types, event.GetType())
		}
	}
	if types[0] != bootstrapv1.WatchFindingsResponse_TYPE_ADDED {
		t.Errorf("events are %v", types)
	}
}
