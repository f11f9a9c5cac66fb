package gateway_test

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// simulate fills the fake for three kube-apiservers, with or without findings.
func (f *fakeBootstrapsvc) simulate(findings bool) {
	f.change(func() {
		f.apiservers = []*bootstrapv1.APIServer{
			simulatedAPIServer("10.0.0.1", "its /readyz answers ok"), simulatedAPIServer("10.0.0.2", "its /readyz answers ok"), simulatedAPIServer("10.0.0.3", "its /readyz answers ok"),
		}
		f.baseline = simulatedBaseline()
		f.repairs = []*bootstrapv1.Repair{simulatedRepair("auto", 4*time.Minute, ""), simulatedRepair("ada@example.com", 26*time.Hour, "")}
		if !findings {
			return
		}
		f.apiservers[2].Ready, f.apiservers[2].Published = false, false
		f.apiservers[2].Reason = "it listens and has not answered /readyz for 18s; it left the endpoints 8s ago"
		f.apiservers[2].Problems = []string{"its key has no lease: it stays published if its sidecar dies"}
		f.baseline.Namespaces[2].Exists, f.baseline.Namespaces[2].Phase = false, ""
		f.baseline.Namespaces[1].Phase = "Terminating"
		f.baseline.Namespaces[1].Problems = []string{"it has been Terminating for 3h: finalizer example.com/backup holds it"}
		f.baseline.Changes = []*statusv1.Change{{
			Verb: statusv1.Change_VERB_CREATE, Reason: "NAMESPACE_MISSING", Detail: "nothing can be created in it",
			Object: &statusv1.ObjectReference{ApiVersion: "v1", Kind: "Namespace", Name: "kube-public"},
		}}
		f.repairs = append([]*bootstrapv1.Repair{simulatedRepair("auto", 20*time.Second, "another writer changed the range; planned again")}, f.repairs...)
		for _, finding := range simulatedFindings() {
			f.findings[finding.Name] = finding
		}
	})
}

func simulatedAPIServer(address, reason string) *bootstrapv1.APIServer {
	return &bootstrapv1.APIServer{
		Name: "apiservers/" + address, Address: address, Port: 6443, Ready: true, Published: true, Reason: reason, ReplicaId: "b1",
		Source: bootstrapv1.APIServer_SOURCE_SIDECAR, Ttl: durationpb.New(9 * time.Second),
	}
}

func simulatedBaseline() *bootstrapv1.Baseline {
	addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	b := &bootstrapv1.Baseline{
		EndpointReconciler: "lease",
		ServiceCidr:        &bootstrapv1.Baseline_ServiceCIDR{Exists: true, Cidrs: []string{"10.96.0.0/16", "fd00:10:96::/112"}, Ready: true},
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

func simulatedRepair(requester string, ago time.Duration, failure string) *bootstrapv1.Repair {
	step := stepFor(&bootstrapv1.Finding{Name: "findings/leaked.node-ports.30091", Subject: "30091", Safe: true})
	step.State, step.Error = bootstrapv1.RepairStep_STATE_DONE, failure
	if failure != "" {
		step.State = bootstrapv1.RepairStep_STATE_FAILED
	}
	return &bootstrapv1.Repair{
		Name: "repairs/" + requester + ago.String(), Requester: requester, Steps: []*bootstrapv1.RepairStep{step}, Complete: failure == "",
		StartTime: timestamppb.New(time.Now().Add(-ago)), EndTime: timestamppb.New(time.Now().Add(-ago)),
	}
}

func simulatedFindings() []*bootstrapv1.Finding {
	service := func(namespace, name string) *statusv1.ObjectReference {
		return &statusv1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: namespace, Name: name}
	}
	link := func(code string, verdict statusv1.Evidence_Verdict, finding, next, source string) *statusv1.Evidence {
		return &statusv1.Evidence{
			Code: code, Verdict: verdict, Finding: finding, Next: next, Source: source, ReplicaId: "b1", Version: "48213",
			ObserveTime: timestamppb.New(time.Now().Add(-12 * time.Second)),
		}
	}
	const good, bad, absent = statusv1.Evidence_VERDICT_GOOD, statusv1.Evidence_VERDICT_BROKEN, statusv1.Evidence_VERDICT_ABSENT
	return []*bootstrapv1.Finding{
		simulatedFinding("duplicate-owner.ip-addresses.10.96.0.17", &bootstrapv1.Finding{
			Code: bootstrapv1.Finding_CODE_DUPLICATE_OWNER, Store: bootstrapv1.Finding_STORE_IP_ADDRESSES, Subject: "10.96.0.17",
			Message: "10.96.0.17 is the ClusterIP of two Services, shop/web and shop/web-copy; connections reach either.",
			Owners:  []*statusv1.ObjectReference{service("shop", "web"), service("shop", "web-copy")},
			Evidence: []*statusv1.Evidence{
				link("IN_USE", bad, "shop/web (created 212d ago) and shop/web-copy (created 3d ago) have 10.96.0.17 in spec.clusterIPs", "recreate shop/web-copy without clusterIP", "service"),
				link("ALLOCATED", good, "the IPAddress 10.96.0.17 names shop/web", "", "ipaddress"),
			},
			UnsafeReason: "Deleting either Service frees the address of both: recreate shop/web-copy, and what is then missing is allocated again at once.",
		}, 3*24*time.Hour, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("not-allocated.ip-addresses.10.96.44.2", &bootstrapv1.Finding{
			Code: bootstrapv1.Finding_CODE_NOT_ALLOCATED, Store: bootstrapv1.Finding_STORE_IP_ADDRESSES, Subject: "10.96.44.2", Safe: true,
			Message: "Service pay/ledger uses 10.96.44.2, and there is no IPAddress 10.96.44.2: the next Service may be given it.",
			Owners:  []*statusv1.ObjectReference{service("pay", "ledger")}, Repair: "Create the IPAddress 10.96.44.2 for Service pay/ledger.",
			Evidence: []*statusv1.Evidence{
				link("IN_USE", good, "pay/ledger has 10.96.44.2 in spec.clusterIPs, and no other Service has", "", "service"),
				link("ALLOCATED", absent, "no IPAddress has this name, also by a read past the cache", "", "ipaddress"),
				link("IN_RANGE", good, "ServiceCIDR kubernetes contains it: 10.96.0.0/16", "", "servicecidr"),
			},
		}, 8*time.Second, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("orphan.ip-addresses.fd00:10:96::51", &bootstrapv1.Finding{
			Code: bootstrapv1.Finding_CODE_ORPHAN, Store: bootstrapv1.Finding_STORE_IP_ADDRESSES, Subject: "fd00:10:96::51",
			Message: "The IPAddress fd00:10:96::51 names Service old/cart, which does not exist.", Repair: "Delete the IPAddress fd00:10:96::51.",
			UnsafeReason: "It carries a label that the allocator does not set, team=cart: it may be kept on purpose.",
		}, 3*time.Hour, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("leaked.node-ports.30091", &bootstrapv1.Finding{
			Code: bootstrapv1.Finding_CODE_LEAKED, Store: bootstrapv1.Finding_STORE_NODE_PORTS, Subject: "30091", Safe: true,
			Message: "NodePort 30091 is allocated, and no Service has used it for 2m 10s.", Repair: "Clear bit 91 of the NodePort range.",
		}, 130*time.Second, bootstrapv1.Finding_STATE_OPEN),
		simulatedFinding("leaked.node-ports.30555", &bootstrapv1.Finding{
			Code: bootstrapv1.Finding_CODE_LEAKED, Store: bootstrapv1.Finding_STORE_NODE_PORTS, Subject: "30555",
			Message: "NodePort 30555 is allocated, and no Service uses it.", UnsafeReason: "It has been watched for 31s; a Service that is being made may be about to use it until 65s have passed.",
		}, 31*time.Second, bootstrapv1.Finding_STATE_PENDING),
		simulatedFinding("range-mismatch.node-ports.", &bootstrapv1.Finding{
			Code: bootstrapv1.Finding_CODE_RANGE_MISMATCH, Store: bootstrapv1.Finding_STORE_CLUSTER_IPS,
			Message: "The stored range is 10.96.0.0/12 and the configured one 10.96.0.0/16; kube-apiserver allocates nothing from it.",
		}, 40*24*time.Hour, bootstrapv1.Finding_STATE_OPEN),
	}
}

func simulatedFinding(name string, finding *bootstrapv1.Finding, since time.Duration, state bootstrapv1.Finding_State) *bootstrapv1.Finding {
	finding.Name, finding.State, finding.Sightings = "findings/"+name, state, 14
	finding.FirstSeenTime, finding.LastSeenTime = timestamppb.New(time.Now().Add(-since)), timestamppb.Now()
	return finding
}
