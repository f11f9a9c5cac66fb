package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// GetBaseline reads everything live, on any replica.
func (s *Server) GetBaseline(ctx context.Context, _ *bootstrapv1.GetBaselineRequest) (*bootstrapv1.GetBaselineResponse, error) {
	found, err := s.observe(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return &bootstrapv1.GetBaselineResponse{Baseline: baselineOf(found), Freshness: s.freshness("")}, nil
}

// ReconcileBaseline needs the term, except to validate only.
func (s *Server) ReconcileBaseline(ctx context.Context, request *bootstrapv1.ReconcileBaselineRequest) (*bootstrapv1.ReconcileBaselineResponse, error) {
	reconcile := s.reconcile
	if request.GetValidateOnly() {
		reconcile = s.plan
	}
	changes, err := reconcile(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return &bootstrapv1.ReconcileBaselineResponse{
		Changes:   changesOf(changes),
		Applied:   !request.GetValidateOnly(),
		Freshness: s.freshness(""),
	}, nil
}

// observation is one look at the whole baseline.
type observation struct {
	namespaces baselinecontroller.NamespacesObservation
	service    baselinecontroller.ServiceObservation
	endpoints  apiserverscontroller.EndpointsObservation
}

// changes of all parts, in the order in which they would be applied.
func (o observation) changes() []baseline.Change {
	return slices.Concat(o.namespaces.Changes, o.service.Changes, o.endpoints.Plan.Changes)
}

func (s *Server) observe(ctx context.Context) (observation, error) {
	if s.isStopping() {
		return observation{}, errStopping
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	var found observation
	var err error
	if found.namespaces, err = s.Baseline.ObserveNamespaces(ctx); err != nil {
		return observation{}, err
	}
	if found.service, err = s.Baseline.ObserveService(ctx); err != nil {
		return observation{}, err
	}
	found.endpoints, err = s.APIServers.ObserveEndpoints(ctx)
	return found, err
}

func (s *Server) plan(ctx context.Context) ([]baseline.Change, error) {
	found, err := s.observe(ctx)
	return found.changes(), err
}

func (s *Server) reconcile(ctx context.Context) ([]baseline.Change, error) {
	held, err := s.heldTerm()
	if err != nil {
		return nil, err
	}
	ctx, done := boundByTerm(ctx, held)
	defer done()
	var all []baseline.Change
	for _, reconciler := range s.Reconcilers {
		changes, err := reconciler.Reconcile(ctx)
		if err != nil {
			// A pass that the end of the term interrupts fails in many ways. The caller needs that
			// one cause.
			return nil, cmp.Or(held.Check(), err)
		}
		all = append(all, changes...)
	}
	return all, nil
}

func baselineOf(found observation) *bootstrapv1.Baseline {
	service := kubernetesServiceOf(found.service.Existing)
	service.EndpointsAddresses = apiservers.PublishedInEndpoints(found.endpoints.Snapshot.Endpoints)
	service.EndpointSliceAddresses = apiservers.PublishedInSlices(found.endpoints.Snapshot.Slices)
	for _, address := range found.endpoints.Plan.Addresses {
		service.DesiredAddresses = append(service.DesiredAddresses, address.String())
	}
	return &bootstrapv1.Baseline{
		Namespaces:         namespacesOf(found.namespaces),
		KubernetesService:  service,
		ServiceCidr:        serviceCIDROf(found.service),
		EndpointReconciler: found.endpoints.Kind.String(),
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

// namespacesOf has every system namespace, also those that do not exist.
func namespacesOf(found baselinecontroller.NamespacesObservation) []*bootstrapv1.Baseline_Namespace {
	phases := make(map[string]corev1.NamespacePhase, len(found.Existing))
	for _, namespace := range found.Existing {
		phases[namespace.Name] = namespace.Status.Phase
	}
	var converted []*bootstrapv1.Baseline_Namespace
	for _, name := range baseline.SystemNamespaces() {
		phase, exists := phases[name]
		converted = append(converted, &bootstrapv1.Baseline_Namespace{
			Name: name, Exists: exists, Phase: string(phase), Problems: problemsOf(found.Changes, "Namespace", name),
		})
	}
	return converted
}

func serviceCIDROf(found baselinecontroller.ServiceObservation) *bootstrapv1.Baseline_ServiceCIDR {
	converted := &bootstrapv1.Baseline_ServiceCIDR{
		Exists:   found.CIDR.Object != nil,
		Ready:    found.CIDR.Ready(),
		Problems: problemsOf(found.Changes, "ServiceCIDR", baseline.ServiceName),
	}
	if converted.Exists {
		converted.Cidrs = found.CIDR.Object.Spec.CIDRs
	}
	return converted
}

func problemsOf(changes []baseline.Change, kind, name string) []string {
	var problems []string
	for _, c := range changes {
		if !c.IsWrite() && c.Kind().Kind == kind && c.Object.GetName() == name {
			problems = append(problems, c.Detail)
		}
	}
	return problems
}

func changesOf(changes []baseline.Change) []*statusv1.Change {
	var converted []*statusv1.Change
	for _, c := range changes {
		apiVersion, kind := c.Kind().ToAPIVersionAndKind()
		converted = append(converted, &statusv1.Change{
			Verb: verbOf(c.Verb),
			Object: &statusv1.ObjectReference{
				ApiVersion: apiVersion,
				Kind:       kind,
				Namespace:  c.Object.GetNamespace(),
				Name:       c.Object.GetName(),
				Uid:        string(c.Object.GetUID()),
			},
			Reason: string(c.Reason),
			Detail: c.Detail,
		})
	}
	return converted
}

func verbOf(verb baseline.Verb) statusv1.Change_Verb {
	return map[baseline.Verb]statusv1.Change_Verb{
		baseline.Create: statusv1.Change_VERB_CREATE, baseline.Update: statusv1.Change_VERB_UPDATE,
		baseline.Delete: statusv1.Change_VERB_DELETE, baseline.Report: statusv1.Change_VERB_REPORT,
	}[verb]
}

// timeOf leaves the zero time out.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
