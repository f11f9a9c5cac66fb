package bootstrapsvc

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/registry"
)

// surveyor reads what there is and has the cores decide what is to be done. It writes nothing and keeps no state.
type surveyor struct {
	objects objects
	keys    keys
	// serviceRange is the primary range as configured; the zero Prefix: read it from the cluster.
	serviceRange netip.Prefix
	// targetPort and nodePort are those of the Service.
	targetPort, nodePort int32
}

type namespacesSurvey struct {
	existing []*corev1.Namespace
	changes  []change.Change
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
	// clusterIP is the one it has or, if it has none, the one it will get; the zero Addr if neither is known.
	clusterIP netip.Addr
	changes   []change.Change
}

func (s *surveyor) service(ctx context.Context) (serviceSurvey, error) {
	existing, err := s.objects.Service(ctx)
	if err != nil {
		return serviceSurvey{}, err
	}
	first, err := s.firstAddress(ctx)
	if err != nil {
		return serviceSurvey{}, err
	}
	want := baseline.Service{ClusterIP: first, TargetPort: s.targetPort, NodePort: s.nodePort}
	return serviceSurvey{
		existing:  existing,
		clusterIP: clusterIPOf(existing, first),
		changes:   baseline.PlanService(want, existing),
	}, nil
}

// firstAddress is the ClusterIP that default/kubernetes should have, the zero Addr if the range is not known.
func (s *surveyor) firstAddress(ctx context.Context) (netip.Addr, error) {
	serviceRange := s.serviceRange
	if !serviceRange.IsValid() {
		var err error
		if serviceRange, err = s.objects.ServiceRange(ctx); err != nil || !serviceRange.IsValid() {
			return netip.Addr{}, err
		}
	}
	return baseline.FirstAddress(serviceRange)
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

type endpointsSurvey struct {
	entries  []registry.Entry
	snapshot apiservers.Snapshot
	plan     apiservers.Plan
}

// endpoints reads the keys first: an address that appears later is found at the next pass, and the objects are guarded by
// their resourceVersions anyhow.
func (s *surveyor) endpoints(ctx context.Context, leaving netip.Addr) (endpointsSurvey, error) {
	entries, err := s.keys.Read(ctx)
	if err != nil {
		return endpointsSurvey{}, err
	}
	service, err := s.service(ctx)
	if err != nil {
		return endpointsSurvey{}, err
	}
	snapshot := apiservers.Snapshot{Servers: serversOf(entries)}
	if snapshot.Endpoints, err = s.objects.Endpoints(ctx); err != nil {
		return endpointsSurvey{}, err
	}
	if snapshot.Slices, err = s.objects.EndpointSlices(ctx); err != nil {
		return endpointsSurvey{}, err
	}
	want := apiservers.Want{ServiceIP: service.clusterIP, Leaving: leaving}
	return endpointsSurvey{entries: entries, snapshot: snapshot, plan: apiservers.NewPlan(want, snapshot)}, nil
}

// serversOf leaves out keys that name no address. A key whose value cannot be read stays, as a server that is not ready.
func serversOf(entries []registry.Entry) []apiservers.Server {
	servers := make([]apiservers.Server, 0, len(entries))
	for _, entry := range entries {
		if entry.Address.IsValid() {
			servers = append(servers, apiservers.Server{Address: entry.Address, Port: entry.Port, Ready: entry.Ready})
		}
	}
	return servers
}

// facts counts the servers that report, those that can be published, and the addresses that are.
func (s endpointsSurvey) facts() facts {
	ready := 0
	for _, entry := range s.entries {
		if entry.Ready {
			ready++
		}
	}
	return facts{
		"apiservers":         int64(len(s.entries)),
		"ready_apiservers":   int64(ready),
		"endpoint_addresses": int64(len(apiservers.PublishedInSlices(s.snapshot.Slices))),
	}
}
