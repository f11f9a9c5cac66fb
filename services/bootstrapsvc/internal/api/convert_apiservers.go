package api

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/internal/prototime"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// Types of the conditions of a kube-apiserver.
const (
	conditionPublished  = "Published"
	conditionRegistered = "Registered"
)

// Reasons of conditions beside those of plans and reports.
const (
	reasonUnreachable = "APISERVER_UNREACHABLE"
	reasonNotSelected = "NOT_SELECTED"
	reasonStatic      = "STATIC_ADDRESS"
	reasonShared      = "SHARED_ADDRESS_NOT_READY"
)

// apiServersOf has one server for each address, ordered by address. found is nil if Kubernetes did
// not answer.
func apiServersOf(list apiserverscontroller.ServerList, found *apiserverscontroller.EndpointsObservation) []*bootstrapv1.APIServer {
	groups := map[string][]apiserverscontroller.KnownServer{}
	for _, server := range list.Servers {
		groups[server.Name] = append(groups[server.Name], server)
	}
	converted := make([]*bootstrapv1.APIServer, 0, len(groups))
	for _, group := range groups {
		converted = append(converted, apiServerOf(group, found))
	}
	slices.SortFunc(converted, func(a, b *bootstrapv1.APIServer) int { return compareAddresses(a.GetAddress(), b.GetAddress()) })
	return converted
}

// compareAddresses orders texts that are no addresses first, as unreadable keys have them.
func compareAddresses(a, b string) int {
	first, _ := netip.ParseAddr(a)
	second, _ := netip.ParseAddr(b)
	if order := first.Compare(second); order != 0 {
		return order
	}
	return strings.Compare(a, b)
}

// apiServerOf merges the servers behind one address, usually one. A ready server gives the result,
// and the remaining servers are named in it.
func apiServerOf(group []apiserverscontroller.KnownServer, found *apiserverscontroller.EndpointsObservation) *bootstrapv1.APIServer {
	isLeft := func(server apiserverscontroller.KnownServer) bool { return server.Left }
	if remaining := slices.DeleteFunc(slices.Clone(group), isLeft); len(remaining) > 0 {
		group = remaining // the mark of a server that stopped stays for a minute
	}
	main := max(0, slices.IndexFunc(group, func(server apiserverscontroller.KnownServer) bool { return server.Ready }))
	server := group[main]
	converted := &bootstrapv1.APIServer{
		Name:               "apiservers/" + server.Name,
		Address:            server.Name,
		Port:               server.Port,
		Ready:              server.Ready,
		ProbeDetail:        server.Detail,
		ProbeTime:          prototime.New(server.ProbeTime),
		RegistrationSource: registrationSourceOf(server.Source),
		EtcdKey:            server.Key,
	}
	if server.TTL > 0 {
		converted.Ttl = durationpb.New(server.TTL)
	}
	problems, replicas := slices.Clone(server.Problems), []string{server.ReplicaID}
	for i, other := range group {
		if i == main {
			continue
		}
		replicas = append(replicas, other.ReplicaID)
		if !other.Ready && len(other.Problems) == 0 {
			problems = append(problems, baseline.Change{Reason: reasonShared, Detail: fmt.Sprintf(
				"behind the same address, %s is not ready: %s", other.ReplicaID, other.Detail)})
		}
		problems = append(problems, other.Problems...)
	}
	converted.ReplicaId = strings.Join(slices.DeleteFunc(replicas, func(id string) bool { return id == "" }), ", ")
	converted.Conditions = []*metav1.Condition{publishedCondition(group[0], found)}
	if len(problems) > 0 {
		converted.Conditions = append(converted.Conditions, registeredCondition(problems))
	}
	return converted
}

// publishedCondition says whether a server is an endpoint now, and why it should or should not be
// one.
func publishedCondition(server apiserverscontroller.KnownServer, found *apiserverscontroller.EndpointsObservation) *metav1.Condition {
	if found == nil {
		return &metav1.Condition{
			Type: conditionPublished, Status: metav1.Condition_STATUS_UNKNOWN, Reason: reasonUnreachable,
			Message: "it is not known whether it is an endpoint, because kube-apiserver did not answer",
		}
	}
	condition := &metav1.Condition{Type: conditionPublished, Status: metav1.Condition_STATUS_FALSE}
	if slices.Contains(apiservers.PublishedInSlices(found.Snapshot.Slices), server.Name) {
		condition.Status = metav1.Condition_STATUS_TRUE
	}
	i := slices.IndexFunc(found.Plan.Statuses, func(status apiservers.ServerStatus) bool { return status.Address == server.Address })
	switch {
	case i < 0:
		condition.Reason, condition.Message = reasonNotSelected, "endpoints are not chosen from servers that report: see --endpoint-reconciler-type"
	case server.Source == apiserverscontroller.FromFlag && found.Plan.Statuses[i].Wanted:
		condition.Reason, condition.Message = reasonStatic, "it is --static-apiserver-address, which is published without probes"
	default:
		condition.Reason, condition.Message = string(found.Plan.Statuses[i].Reason), found.Plan.Statuses[i].Why
	}
	return condition
}

// registeredCondition has the reason of the first problem and the text of all.
func registeredCondition(problems []baseline.Change) *metav1.Condition {
	var details []string
	for _, problem := range problems {
		details = append(details, problem.Detail)
	}
	return &metav1.Condition{
		Type: conditionRegistered, Status: metav1.Condition_STATUS_FALSE, Reason: string(problems[0].Reason), Message: joined(details),
	}
}

func registrationSourceOf(source apiserverscontroller.Source) bootstrapv1.APIServer_RegistrationSource {
	return map[apiserverscontroller.Source]bootstrapv1.APIServer_RegistrationSource{
		apiserverscontroller.FromSidecar:     bootstrapv1.APIServer_REGISTRATION_SOURCE_SIDECAR,
		apiserverscontroller.FromMasterLease: bootstrapv1.APIServer_REGISTRATION_SOURCE_MASTER_LEASE,
		apiserverscontroller.FromFlag:        bootstrapv1.APIServer_REGISTRATION_SOURCE_STATIC,
	}[source]
}
