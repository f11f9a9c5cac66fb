package api

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/wording"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/shadow"
)

func (s *baselineServer) baselineOf(found observation) *bootstrapv1.Baseline {
	service := kubernetesServiceOf(found.service.Existing)
	service.EndpointsAddresses = apiservers.PublishedInEndpoints(found.endpoints.Snapshot.Endpoints)
	service.EndpointSliceAddresses = apiservers.PublishedInSlices(found.endpoints.Snapshot.Slices)
	for _, address := range found.endpoints.Plan.Addresses {
		service.DesiredAddresses = append(service.DesiredAddresses, address.String())
	}
	parts := s.partsOf(found)
	return &bootstrapv1.Baseline{
		Name:               "baseline",
		Namespaces:         namespacesOf(found.namespaces),
		KubernetesService:  service,
		ServiceCidr:        serviceCIDROf(found.service),
		EndpointReconciler: found.endpoints.Kind.String(),
		Plan:               planOf(parts),
		Conditions:         conditionsOf(reportsOf(parts)),
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

// namespacesOf has every system namespace, also those that do not exist.
func namespacesOf(found baselinecontroller.NamespacesObservation) []*bootstrapv1.Baseline_Namespace {
	phases := make(map[string]corev1.NamespacePhase, len(found.Existing))
	for _, namespace := range found.Existing {
		phases[namespace.Name] = namespace.Status.Phase
	}
	var converted []*bootstrapv1.Baseline_Namespace
	for _, name := range slices.Sorted(slices.Values(baseline.SystemNamespaces())) {
		phase, exists := phases[name]
		converted = append(converted, &bootstrapv1.Baseline_Namespace{Name: name, Exists: exists, Phase: string(phase)})
	}
	return converted
}

func serviceCIDROf(found baselinecontroller.ServiceObservation) *bootstrapv1.Baseline_ServiceCIDR {
	converted := &bootstrapv1.Baseline_ServiceCIDR{Exists: found.CIDR.Object != nil, Ready: found.CIDR.Ready()}
	if converted.Exists {
		converted.Cidrs = found.CIDR.Object.Spec.CIDRs
	}
	return converted
}

// loopDisabled is the reason of a plan that lacks what a disabled loop would write.
const loopDisabled = "LOOP_DISABLED"

// planOf returns what the enabled loops would write or, if they were asked to, what came of it.
func planOf(parts []*part) *metav1.Plan {
	plan := &metav1.Plan{Mode: metav1.Mode_MODE_SHADOW}
	var writes []baseline.Change
	for _, p := range parts {
		switch {
		case p.enabled:
			plan.Mode = metav1.Mode_MODE_ENFORCE
			changes, written := p.changes(slices.ContainsFunc(parts, func(other *part) bool { return other.reconciled }))
			plan.Changes, writes = append(plan.Changes, changes...), append(writes, written...)
		case len(p.writes) > 0:
			plan.IncompleteReasons = append(plan.IncompleteReasons, &metav1.IncompleteReason{
				Reason:  loopDisabled,
				Message: fmt.Sprintf("loop %s is disabled; %d changes are not planned: %s", p.loop.Name, len(p.writes), p.writes[0].Detail),
			})
		}
	}
	plan.Etag = baseline.Fingerprint(writes)
	return plan
}

// changes returns the writes that were tried and, after a failure, those that were not.
func (p *part) changes(reconciling bool) (changes []*metav1.Change, writes []baseline.Change) {
	for _, try := range p.tries {
		changes, writes = append(changes, triedChange(try)), append(writes, try.Change)
	}
	for _, c := range p.writes {
		planned := changeOf(c)
		switch {
		case !reconciling:
			planned.Outcome = metav1.Change_OUTCOME_PLANNED
		case p.reconciled:
			continue
		default:
			planned.Outcome = metav1.Change_OUTCOME_SKIPPED
		}
		changes, writes = append(changes, planned), append(writes, c)
	}
	return changes, writes
}

func triedChange(try baselinecontroller.Try) *metav1.Change {
	tried := changeOf(try.Change)
	switch {
	case try.NotNeeded:
		tried.Outcome = metav1.Change_OUTCOME_NOT_NEEDED
	case try.Err != nil:
		tried.Outcome, tried.Error = metav1.Change_OUTCOME_FAILED, wording.Valid(try.Err.Error())
	default:
		tried.Outcome, tried.ApplyTime = metav1.Change_OUTCOME_APPLIED, prototime.New(try.Time)
	}
	return tried
}

func changeOf(c baseline.Change) *metav1.Change {
	apiVersion, kind := c.Kind().ToAPIVersionAndKind()
	return &metav1.Change{
		Verb: c.Verb.Proto(),
		Object: &metav1.ObjectReference{
			ApiVersion: apiVersion,
			Kind:       kind,
			Namespace:  c.Object.GetNamespace(),
			Name:       c.Object.GetName(),
			Uid:        string(c.Object.GetUID()),
		},
		Reason:       string(c.Reason),
		Message:      c.Detail,
		BaseVersion:  c.Object.GetResourceVersion(),
		FieldChanges: shadow.Fields(c.Before, c.Object).Proto(),
	}
}

// conditionTypes has the condition of each reason of a report: what is not so.
var conditionTypes = map[baseline.Reason]string{
	baseline.NamespaceTerminating: "NamespacesActive",
	baseline.NamespaceMislabelled: "NamespacesLabelled",
	baseline.ServiceTerminating:   "ServiceActive",
	baseline.NodePortsHeld:        "ServiceTypeAsConfigured",
	baseline.ClusterIPDiffers:     "ClusterIPAsConfigured",
	baseline.ClusterIPUnknown:     "ClusterIPKnown",
	baseline.SingleFamily:         "ServiceDualStack",
	baseline.CIDRMissing:          "ServiceCIDRPresent",
	baseline.CIDRTerminating:      "ServiceCIDRActive",
	baseline.CIDRNotReady:         "ServiceCIDRReady",
	baseline.CIDRDiffers:          "ServiceCIDRAsConfigured",
	baseline.CIDRUnreadable:       "ServiceCIDRReadable",
	apiservers.SliceForeign:       "EndpointSlicesOwned",
	apiservers.NoServerReports:    "APIServersReporting",
	apiservers.NoServerReady:      "APIServersReady",
	apiservers.FamilyMismatch:     "AddressFamiliesMatch",
	apiservers.FamilyUnknown:      "AddressFamilyKnown",
	apiservers.NotRoutable:        "AddressesRoutable",
	apiservers.StaticUnresolved:   "StaticAddressResolved",
	apiservers.Kept:               "PublishedAPIServersReady",
	apiservers.CountExceeded:      "APIServerCountAsConfigured",
	apiservers.LastServerKept:     "LastAPIServerPresent",
	apiservers.KeyUnleased:        "KeysLeased",
	apiservers.KeyDead:            "KeyLeasesAlive",
	apiservers.KeyUnreadable:      "KeysReadable",
	apiservers.Silent:             "APIServersAnswering",
	apiservers.PortMismatch:       "PortsMatch",
}

// ConditionTypeOf returns the type of the condition that reports with a reason make FALSE.
func ConditionTypeOf(reason baseline.Reason) (string, bool) {
	name, ok := conditionTypes[reason]
	return name, ok
}

// maxReportsShown bounds the reports in the message of one condition.
const maxReportsShown = 10

// conditionsOf returns one condition for each reason of reports, ordered by type.
func conditionsOf(reports []baseline.Change) []*metav1.Condition {
	details := map[baseline.Reason][]string{}
	for _, report := range reports {
		details[report.Reason] = append(details[report.Reason], report.Detail)
	}
	var conditions []*metav1.Condition
	for _, reason := range slices.Sorted(maps.Keys(details)) {
		conditions = append(conditions, &metav1.Condition{
			Type: conditionTypes[reason], Status: metav1.Condition_STATUS_FALSE, Reason: string(reason), Message: joined(details[reason]),
		})
	}
	slices.SortFunc(conditions, func(a, b *metav1.Condition) int { return strings.Compare(a.GetType(), b.GetType()) })
	return conditions
}

func joined(details []string) string {
	shown := strings.Join(details[:min(len(details), maxReportsShown)], "; ")
	if more := len(details) - maxReportsShown; more > 0 {
		shown += fmt.Sprintf("; and %d more", more)
	}
	return wording.Valid(shown)
}
