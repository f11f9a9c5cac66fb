package bootstrapsvc

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

func baselineOf(found survey) *bootstrapv1.Baseline {
	service := kubernetesServiceOf(found.service.existing)
	service.EndpointsAddresses = apiservers.PublishedInEndpoints(found.endpoints.snapshot.Endpoints)
	service.EndpointSliceAddresses = apiservers.PublishedInSlices(found.endpoints.snapshot.Slices)
	service.DesiredAddresses = textsOf(found.endpoints.plan.Addresses)
	return &bootstrapv1.Baseline{
		Namespaces:         namespacesOf(found.namespaces),
		KubernetesService:  service,
		ServiceCidr:        serviceCIDROf(found.service),
		EndpointReconciler: found.endpoints.kind.String(),
		Changes:            changesOf(found.changes()),
	}
}

func kubernetesServiceOf(existing *corev1.Service) *bootstrapv1.Baseline_KubernetesService {
	if existing == nil {
		return &bootstrapv1.Baseline_KubernetesService{}
	}
	converted := &bootstrapv1.Baseline_KubernetesService{
		Exists:     true,
		ClusterIp:  existing.Spec.ClusterIP,
		ClusterIps: existing.Spec.ClusterIPs,
		Type:       string(existing.Spec.Type),
	}
	for _, port := range existing.Spec.Ports {
		converted.Ports = append(converted.Ports, fmt.Sprintf("%s:%d/%s", port.Name, port.Port, port.Protocol))
	}
	slices.Sort(converted.Ports)
	return converted
}

// namespacesOf names every system namespace, also those that do not exist.
func namespacesOf(found namespacesSurvey) []*bootstrapv1.Baseline_Namespace {
	phases := make(map[string]corev1.NamespacePhase, len(found.existing))
	for _, namespace := range found.existing {
		phases[namespace.Name] = namespace.Status.Phase
	}
	var converted []*bootstrapv1.Baseline_Namespace
	for _, name := range baseline.SystemNamespaces() {
		phase, exists := phases[name]
		converted = append(converted, &bootstrapv1.Baseline_Namespace{
			Name: name, Exists: exists, Phase: string(phase), Problems: problemsOf(found.changes, "Namespace", name),
		})
	}
	return converted
}

func serviceCIDROf(found serviceSurvey) *bootstrapv1.Baseline_ServiceCIDR {
	converted := &bootstrapv1.Baseline_ServiceCIDR{
		Exists:   found.cidr.Object != nil,
		Ready:    found.cidr.Ready(),
		Problems: problemsOf(found.changes, "ServiceCIDR", baseline.ServiceName),
	}
	if converted.Exists {
		converted.Cidrs = found.cidr.Object.Spec.CIDRs
	}
	return converted
}

// problemsOf are what was found about one object that no write mends.
func problemsOf(changes []baseline.Change, kind, name string) []string {
	var problems []string
	for _, c := range changes {
		if !c.Writes() && c.Kind().Kind == kind && c.Object.GetName() == name {
			problems = append(problems, c.Detail)
		}
	}
	return problems
}
