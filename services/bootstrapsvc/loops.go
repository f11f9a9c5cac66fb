package bootstrapsvc

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// Names of the loops, as --loops takes them.
const (
	probeLoop      = "apiserver-probe"
	adoptionLoop   = "masterlease-probe"
	namespacesLoop = "system-namespaces"
	serviceLoop    = "kubernetes-service"
	endpointsLoop  = "kubernetes-endpoints"
)

// Periods as upstream has them.
const (
	namespacesPeriod = time.Minute
	servicePeriod    = 10 * time.Second
	endpointsPeriod  = 10 * time.Second
)

func (s *Service) loops(sidecar *sidecar) []loop.Loop {
	return []loop.Loop{s.audit.loop(), {
		Name: probeLoop, Scope: loop.Always, Stall: sidecar.stall(), Run: sidecar.run,
		Doc: "Probes the kube-apiserver beside this replica and says in etcd whether it is ready.",
	}, {
		Name: adoptionLoop, Scope: loop.Always, Run: s.adoption.run,
		Doc: "With --adopt-master-leases, asks kube-apiservers that have no sidecar yet whether they are ready.",
	}, {
		Name: namespacesLoop, Scope: loop.Leader, Stall: 5 * namespacesPeriod, Run: s.namespaces.run,
		Doc: "Creates system namespaces that are missing.",
	}, {
		Name: serviceLoop, Scope: loop.Leader, Stall: time.Minute, Run: s.service.run,
		Doc: "Keeps the service default/kubernetes as it must be.",
	}, {
		Name: endpointsLoop, Scope: loop.Leader, Stall: time.Minute, Run: s.runEndpoints,
		Doc: "Keeps the endpoints of default/kubernetes at the ready kube-apiservers.",
	}}
}

// runEndpoints is the duty with watches beside it that nudge it.
func (s *Service) runEndpoints(ctx context.Context, report loop.Report) error {
	ctx, cancel := context.WithCancel(ctx)
	written := make(chan struct{}, 1)
	var watches sync.WaitGroup
	watches.Go(func() { s.keys.Watch(ctx, s.endpoints.nudge) })
	watches.Go(func() { s.surveyor.objects.Watch(ctx, func() { hint(written) }) })
	watches.Go(func() { answer(ctx, written, s.endpoints.nudge) })
	// In this order, also when the duty panics.
	defer watches.Wait()
	defer cancel()
	return s.endpoints.run(ctx, report)
}

// Somebody who writes what is kept here is answered at once a few times, and then once a second: two who do not agree shall not
// write as fast as they can.
const (
	answersAtOnce    = 3
	answersPerSecond = 1
)

// hint leaves one in a channel that holds one.
func hint(hints chan<- struct{}) {
	select {
	case hints <- struct{}{}:
	default:
	}
}

// answer nudges for hints, as often as it should be answered, until ctx ends.
func answer(ctx context.Context, hints <-chan struct{}, nudge func()) {
	limiter := rate.NewLimiter(answersPerSecond, answersAtOnce)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints:
		}
		if limiter.Wait(ctx) != nil {
			return // only the end of ctx makes it fail
		}
		nudge()
	}
}

// perform is what a duty calls for one pass.
type perform = func(ctx context.Context, leaving netip.Addr) ([]baseline.Change, error)

func (s *Service) keepNamespaces(k *keeper) perform {
	return func(ctx context.Context, _ netip.Addr) ([]baseline.Change, error) {
		return k.settle(ctx, func(ctx context.Context) (observation, error) {
			survey, err := s.surveyor.namespaces(ctx)
			return observation{changes: survey.changes, facts: facts{"namespaces": int64(len(survey.existing))}}, err
		})
	}
}

func (s *Service) keepService(k *keeper) perform {
	return func(ctx context.Context, _ netip.Addr) ([]baseline.Change, error) {
		return k.settle(ctx, func(ctx context.Context) (observation, error) {
			survey, err := s.surveyor.service(ctx)
			return observation{changes: survey.changes}, err
		})
	}
}

func (s *Service) keepEndpoints(k *keeper) perform {
	return func(ctx context.Context, leaving netip.Addr) ([]baseline.Change, error) {
		return k.settle(ctx, func(ctx context.Context) (observation, error) {
			var own []netip.Addr
			if leaving.IsValid() {
				own = s.at.all()
			}
			survey, err := s.surveyor.endpoints(ctx, own)
			if err != nil {
				return observation{}, err
			}
			s.metrics.sawAPIServers(survey.roll.present)
			return observation{changes: survey.plan.Changes, facts: survey.facts()}, nil
		})
	}
}
