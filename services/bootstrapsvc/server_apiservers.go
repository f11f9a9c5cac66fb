package bootstrapsvc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

const (
	// publishedTimeout bounds the reads that say what is published: a list of kube-apiservers is wanted most when one hangs.
	publishedTimeout = 2 * time.Second
	// watchPeriod is how often a watch looks again although no key changed: what is published, and what probes say, may have.
	watchPeriod = 2 * time.Second
)

func (s *server) ListAPIServers(ctx context.Context, _ *bootstrapv1.ListAPIServersRequest) (*bootstrapv1.ListAPIServersResponse, error) {
	list, err := s.service.apiServers(ctx)
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	return &bootstrapv1.ListAPIServersResponse{Apiservers: list, Freshness: s.service.freshness()}, nil
}

// WatchAPIServers sends whole lists, so a reader that is slow has missed nothing when it has the next one.
func (s *server) WatchAPIServers(_ *bootstrapv1.WatchAPIServersRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse]) error {
	ctx, cancel := context.WithCancel(wire.Context())
	defer cancel()
	changed, watched := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(watched)
		s.service.keys.Watch(ctx, func() { hint(changed) })
	}()
	err := s.service.tellAPIServers(ctx, wire, changed)
	cancel()
	<-watched
	return s.service.statusOf(wire.Context(), err)
}

// tellAPIServers sends the list at once and again whenever it differs, until ctx or the service ends. Once the first list is
// told, a look that fails is made up for by the next.
func (s *Service) tellAPIServers(ctx context.Context, wire grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse], changed <-chan struct{}) error {
	again := time.NewTicker(watchPeriod)
	defer again.Stop()
	told := &bootstrapv1.WatchAPIServersResponse{}
	for isFirst := true; ; {
		list, err := s.apiServers(ctx)
		if err != nil && isFirst {
			return err
		}
		if now := steady(list); err == nil && (isFirst || !proto.Equal(told, now)) {
			if err := wire.Send(&bootstrapv1.WatchAPIServersResponse{Apiservers: list, Freshness: s.freshness()}); err != nil {
				return err
			}
			told, isFirst = now, false
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.stopped:
			return errStopping
		case <-changed:
		case <-again.C:
		}
	}
}

// steady is a list without what changes all the time.
func steady(list []*bootstrapv1.APIServer) *bootstrapv1.WatchAPIServersResponse {
	kept := proto.CloneOf(&bootstrapv1.WatchAPIServersResponse{Apiservers: list})
	for _, each := range kept.GetApiservers() {
		each.ProbeTime, each.Ttl = nil, nil
	}
	return kept
}

// apiServers lists the kube-apiservers as etcd knows them. What of them is published is looked up beside, and is said to be
// unknown where Kubernetes does not answer.
func (s *Service) apiServers(ctx context.Context) ([]*bootstrapv1.APIServer, error) {
	if s.stopping.Load() {
		return nil, errStopping
	}
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	roll, err := s.surveyor.caller.call(reading, s.keys.List)
	if err != nil {
		return nil, err
	}
	looking, done := context.WithTimeout(reading, publishedTimeout)
	defer done()
	survey, err := s.surveyor.endpointsOf(looking, roll, nil)
	if err != nil {
		return apiServersOf(roll, nil), nil
	}
	return apiServersOf(roll, &survey), nil
}
