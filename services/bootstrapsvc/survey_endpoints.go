package bootstrapsvc

import (
	"context"
	"net/netip"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

type endpointsSurvey struct {
	kind     apiservers.Kind
	roll     rollcall
	snapshot apiservers.Snapshot
	plan     apiservers.Plan
}

// endpoints calls the roll first: an address that appears later is found at the next pass, and the objects are guarded by
// their resourceVersions anyhow.
func (s *surveyor) endpoints(ctx context.Context, leaving []netip.Addr) (endpointsSurvey, error) {
	roll, err := s.caller.call(ctx, s.keys.Read)
	if err != nil {
		return endpointsSurvey{}, err
	}
	return s.endpointsOf(ctx, roll, leaving)
}

// endpointsOf compares what is published with those who are present.
func (s *surveyor) endpointsOf(ctx context.Context, roll rollcall, leaving []netip.Addr) (endpointsSurvey, error) {
	service, err := s.service(ctx)
	if err != nil {
		return endpointsSurvey{}, err
	}
	snapshot := apiservers.Snapshot{Servers: roll.servers(s.publish.Kind)}
	if snapshot.Endpoints, err = s.objects.Endpoints(ctx); err != nil {
		return endpointsSurvey{}, err
	}
	if snapshot.Slices, err = s.objects.EndpointSlices(ctx); err != nil {
		return endpointsSurvey{}, err
	}
	want := s.publish
	want.ServiceIP, want.Leaving, want.Unresolved = service.clusterIP, leaving, roll.unresolved
	plan := apiservers.NewPlan(want, snapshot)
	plan.Changes = append(plan.Changes, roll.findings...)
	return endpointsSurvey{kind: s.publish.Kind, roll: roll, snapshot: snapshot, plan: plan}, nil
}

// facts counts the servers that are known, those that are ready, and the addresses that are published.
func (s endpointsSurvey) facts() facts {
	ready := 0
	for _, each := range s.roll.present {
		if each.server.Ready {
			ready++
		}
	}
	return facts{
		"apiservers":         int64(len(s.roll.present)),
		"ready_apiservers":   int64(ready),
		"endpoint_addresses": int64(len(apiservers.PublishedInSlices(s.snapshot.Slices))),
	}
}

// portsOf are the endpoints' side of the Service's extra ports.
func portsOf(extra []baseline.Port) []apiservers.Port {
	var ports []apiservers.Port
	for _, port := range extra {
		ports = append(ports, apiservers.Port{Name: port.Name, Protocol: port.Protocol, Port: port.TargetPort})
	}
	return ports
}
