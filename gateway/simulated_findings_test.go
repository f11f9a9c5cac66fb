package gateway_test

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// simulate fills the fake for three kube-apiservers, with or without findings.
func (f *fakeBootstrapsvc) simulate(findings bool) {
	f.setAPIServers(simulatedAPIServer("10.0.0.1"), simulatedAPIServer("10.0.0.2"), simulatedAPIServer("10.0.0.3"))
	f.change(func() {
		f.baseline = simulatedBaseline()
		f.addRepair("trivet:auto", 4*time.Minute, "")
		f.addRepair("ada@example.com", 26*time.Hour, "")
		if !findings {
			return
		}
		third := f.apiservers["apiservers/10.0.0.3"]
		third.Ready, third.ProbeDetail = false, "it listens and has not answered /readyz for 18s; it left the endpoints 8s ago"
		third.Conditions = []*metav1.Condition{
			{Type: "Published", Status: metav1.Condition_STATUS_FALSE, Reason: "NOT_READY", Message: third.ProbeDetail},
			{Type: "Registered", Status: metav1.Condition_STATUS_FALSE, Reason: "APISERVER_KEY_UNLEASED", Message: "its key has no lease"},
		}
		f.baseline.Namespaces[2].Exists, f.baseline.Namespaces[2].Phase = false, ""
		f.baseline.Namespaces[1].Phase = "Terminating"
		f.baseline.Conditions = []*metav1.Condition{{
			Type: "kube-node-lease", Status: metav1.Condition_STATUS_FALSE, Reason: "NAMESPACE_TERMINATING",
			Message: "it has been Terminating for 3h: finalizer example.com/backup holds it",
		}}
		f.baseline.Plan = &metav1.Plan{Etag: "b1", Mode: metav1.Mode_MODE_ENFORCE, Changes: []*metav1.Change{{
			Verb: metav1.Change_VERB_CREATE, Reason: "NAMESPACE_MISSING", Message: "nothing can be created in it",
			Object: &metav1.ObjectReference{ApiVersion: "v1", Kind: "Namespace", Name: "kube-public"},
		}}}
		f.addRepair("trivet:auto", 20*time.Second, "another writer changed the range; planned again")
		for _, finding := range simulatedFindings() {
			f.findings[finding.Name] = finding
		}
	})
}

func simulatedAPIServer(address string) *bootstrapv1.APIServer {
	return &bootstrapv1.APIServer{
		Name: "apiservers/" + address, Address: address, Port: 6443, Ready: true, ProbeDetail: "its /readyz answers ok", ReplicaId: "b1",
		RegistrationSource: bootstrapv1.APIServer_REGISTRATION_SOURCE_SIDECAR, Ttl: durationpb.New(9 * time.Second),
		Conditions: []*metav1.Condition{{Type: "Published", Status: metav1.Condition_STATUS_TRUE, Reason: "READY"}},
	}
}

func simulatedBaseline() *bootstrapv1.Baseline {
	addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	b := &bootstrapv1.Baseline{
		Name: "baseline", EndpointReconciler: "lease", Plan: &metav1.Plan{Mode: metav1.Mode_MODE_ENFORCE},
		ServiceCidr: &bootstrapv1.Baseline_ServiceCIDR{Exists: true, Cidrs: []string{"10.96.0.0/16", "fd00:10:96::/112"}, Ready: true},
		KubernetesService: &bootstrapv1.Baseline_KubernetesService{
			Exists: true, ClusterIp: "10.96.0.1", ClusterIps: []string{"10.96.0.1", "fd00:10:96::1"}, Type: "ClusterIP", Ports: []string{"https:443/TCP"},
			EndpointsAddresses: addresses, EndpointSliceAddresses: addresses, DesiredAddresses: addresses,
		},
	}
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		b.Namespaces = append(b.Namespaces, &bootstrapv1.Baseline_Namespace{Name: name, Exists: true, Phase: "Active"})
	}
	return b
}

// addRepair adds a repair of the past. The caller holds the lock.
func (f *fakeBootstrapsvc) addRepair(user string, ago time.Duration, failure string) {
	step := stepFor(&bootstrapv1.Finding{Name: "findings/leaked.node-ports.30091", Subject: "30091", RepairMode: bootstrapv1.Finding_REPAIR_MODE_AUTO})
	step.Change.Outcome, step.Change.Error, step.AttemptCount = metav1.Change_OUTCOME_APPLIED, failure, 1
	repair := &bootstrapv1.Repair{
		Name: "repairs/" + ago.String(), Requester: &metav1.Caller{User: user}, Steps: []*bootstrapv1.RepairStep{step}, AttemptCount: 1,
		State: bootstrapv1.Repair_STATE_SUCCEEDED, StartTime: timestamppb.New(time.Now().Add(-ago)), EndTime: timestamppb.New(time.Now().Add(-ago)),
	}
	if failure != "" {
		step.Change.Outcome, repair.State = metav1.Change_OUTCOME_FAILED, bootstrapv1.Repair_STATE_FAILED
	}
	f.repairs[repair.Name] = repair
}

func simulatedFindings() []*bootstrapv1.Finding {
	service := func(namespace, name string) *metav1.ObjectReference {
		return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: namespace, Name: name}
	}
	return []*bootstrapv1.Finding{
		simulatedFinding("duplicate-owner.ip-addresses.10.96.0.17", &bootstrapv1.Finding{
			Code: "DUPLICATE_OWNER", Store: bootstrapv1.Store_STORE_IP_ADDRESSES, Subject: "10.96.0.17",
			Message:           "10.96.0.17 is the ClusterIP of two Services, shop/web and shop/web-copy; connections reach either.",
			Objects:           []*metav1.ObjectReference{service("shop", "web"), service("shop", "web-copy")},
			RepairModeMessage: "Deleting either Service frees the address of both: recreate shop/web-copy, and what is then missing is allocated again at once.",
		}, 3*24*time.Hour, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("not-allocated.ip-addresses.10.96.44.2", &bootstrapv1.Finding{
			Code: "NOT_ALLOCATED", Store: bootstrapv1.Store_STORE_IP_ADDRESSES, Subject: "10.96.44.2",
			Message: "Service pay/ledger uses 10.96.44.2, and there is no IPAddress 10.96.44.2: the next Service may be given it.",
			Objects: []*metav1.ObjectReference{service("pay", "ledger")}, Repair: "Create the IPAddress 10.96.44.2 for Service pay/ledger.",
		}, 8*time.Second, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("orphan.ip-addresses.fd00:10:96::51", &bootstrapv1.Finding{
			Code: "ORPHAN", Store: bootstrapv1.Store_STORE_IP_ADDRESSES, Subject: "fd00:10:96::51",
			Message: "The IPAddress fd00:10:96::51 names Service old/cart, which does not exist.", Repair: "Delete the IPAddress fd00:10:96::51.",
			RepairModeMessage: "It carries a label that the allocator does not set, team=cart: it may be kept on purpose.",
		}, 3*time.Hour, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("leaked.node-ports.30091", &bootstrapv1.Finding{
			Code: "LEAKED", Store: bootstrapv1.Store_STORE_NODE_PORTS, Subject: "30091",
			Message: "NodePort 30091 is allocated, and no Service has used it for 2m 10s.", Repair: "Clear bit 91 of the NodePort range.",
		}, 130*time.Second, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("leaked.node-ports.30555", &bootstrapv1.Finding{
			Code: "LEAKED", Store: bootstrapv1.Store_STORE_NODE_PORTS, Subject: "30555",
			Message: "NodePort 30555 is allocated, and no Service uses it.", RepairModeMessage: "It has been watched for 31s; a Service that is being made may be about to use it until 65s have passed.",
		}, 31*time.Second, bootstrapv1.Finding_STATE_PENDING),
		simulatedFinding("range-mismatch.node-ports.", &bootstrapv1.Finding{
			Code: "RANGE_MISMATCH", Store: bootstrapv1.Store_STORE_CLUSTER_IPS,
			Message: "The stored range is 10.96.0.0/12 and the configured one 10.96.0.0/16; kube-apiserver allocates nothing from it.",
		}, 40*24*time.Hour, bootstrapv1.Finding_STATE_OPEN),
	}
}

func simulatedFinding(name string, finding *bootstrapv1.Finding, since time.Duration, state bootstrapv1.Finding_State) *bootstrapv1.Finding {
	finding.Name, finding.State, finding.ObservationCount = "findings/"+name, state, 14
	finding.RepairMode = bootstrapv1.Finding_REPAIR_MODE_AUTO
	if finding.RepairModeMessage != "" || finding.Repair == "" {
		finding.RepairMode = bootstrapv1.Finding_REPAIR_MODE_MANUAL
	}
	finding.FirstObserveTime, finding.LastObserveTime = timestamppb.New(time.Now().Add(-since)), timestamppb.Now()
	return finding
}
