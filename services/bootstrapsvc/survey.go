package bootstrapsvc

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// surveyor reads what there is and has the cores decide what is to be done. It writes nothing and keeps no state.
type surveyor struct {
	objects objects
	keys    keys
	// serviceRanges are those that are configured, the primary one first; none: read them from the cluster.
	serviceRanges []netip.Prefix
	// want is what the Service must be, as far as it does not depend on the ranges.
	want baseline.Service
	// caller knows the kube-apiservers, publish what is to be made of them.
	caller  *caller
	publish apiservers.Want
}

type namespacesSurvey struct {
	existing []*corev1.Namespace
	changes  []baseline.Change
}

func (s *surveyor) namespaces(ctx context.Context) (namespacesSurvey, error) {
	existing, err := s.objects.Namespaces(ctx, baseline.SystemNamespaces())
	if err != nil {
		return namespacesSurvey{}, err
	}
	return namespacesSurvey{existing: existing, changes: baseline.PlanNamespaces(existing)}, nil
}

type serviceSurvey struct {
	existing *corev1.Service
	cidr     baseline.ServiceCIDR
	// clusterIP is the one it has or, if it has none, the one it will get; the zero Addr if neither is known.
	clusterIP netip.Addr
	changes   []baseline.Change
}

func (s *surveyor) service(ctx context.Context) (serviceSurvey, error) {
	existing, err := s.objects.Service(ctx)
	if err != nil {
		return serviceSurvey{}, err
	}
	cidr, err := s.objects.ServiceCIDR(ctx)
	if err != nil {
		return serviceSurvey{}, err
	}
	want, err := s.wanted(cidr)
	if err != nil {
		return serviceSurvey{}, err
	}
	return serviceSurvey{
		existing:  existing,
		cidr:      cidr,
		clusterIP: clusterIPOf(existing, want.ClusterIP),
		changes:   append(baseline.PlanService(want, existing), baseline.ReportServiceCIDR(s.serviceRanges, cidr)...),
	}, nil
}

// wanted adds to what the Service must be what the ranges say: its ClusterIP, unless no range is known, and the families that
// it can have.
func (s *surveyor) wanted(cidr baseline.ServiceCIDR) (baseline.Service, error) {
	want, ranges := s.want, cidr.Ranges()
	if cidr.Ready() {
		want.Families = baseline.FamiliesOf(ranges)
	}
	if len(s.serviceRanges) > 0 {
		ranges = s.serviceRanges
	}
	if len(ranges) == 0 {
		return want, nil
	}
	var err error
	want.ClusterIP, err = baseline.FirstAddress(ranges[0])
	return want, err
}

func clusterIPOf(existing *corev1.Service, otherwise netip.Addr) netip.Addr {
	if existing == nil {
		return otherwise
	}
	if has, err := netip.ParseAddr(existing.Spec.ClusterIP); err == nil {
		return has.Unmap()
	}
	return otherwise
}
