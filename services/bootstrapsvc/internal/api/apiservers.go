package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
)

const (
	// publishedTimeout bounds the reads of what is published. The list is needed most while a
	// kube-apiserver hangs, and is then sent without them.
	publishedTimeout = 2 * time.Second
	// watchPeriod is how often a watch reads again although no key changed: probes and what is
	// published may have changed.
	watchPeriod = 2 * time.Second
)

// Reasons of servers that are in no plan.
const (
	reasonUnknown   = "it is not known whether it is an endpoint, because kube-apiserver did not answer"
	reasonNotChosen = "endpoints are not chosen from servers that report: see --endpoint-reconciler-type"
	reasonStatic    = "it is --static-apiserver-address, which is published without probes"
)

// ListAPIServers answers on any replica.
func (s *Server) ListAPIServers(ctx context.Context, _ *bootstrapv1.ListAPIServersRequest) (*bootstrapv1.ListAPIServersResponse, error) {
	list, err := s.listAPIServers(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return &bootstrapv1.ListAPIServersResponse{Apiservers: list, Freshness: s.freshness("")}, nil
}

// WatchAPIServers sends whole lists, so a slow reader misses nothing once it has the next one.
func (s *Server) WatchAPIServers(_ *bootstrapv1.WatchAPIServersRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	changed, watched := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(watched)
		s.APIServers.WatchServers(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	err := s.sendAPIServers(ctx, stream, changed)
	cancel()
	<-watched
	return s.statusOf(stream.Context(), err)
}

// sendAPIServers sends the list at once and again whenever it differs, until ctx or the service
// ends. A read that fails after the first list is repeated at the next change or period.
func (s *Server) sendAPIServers(ctx context.Context, stream grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse], changed <-chan struct{}) error {
	again := time.NewTicker(watchPeriod)
	defer again.Stop()
	sent := &bootstrapv1.WatchAPIServersResponse{}
	for isFirst := true; ; {
		list, err := s.listAPIServers(ctx)
		if err != nil && isFirst {
			return err
		}
		if now := withoutTimes(list); err == nil && (isFirst || !proto.Equal(sent, now)) {
			if err := stream.Send(&bootstrapv1.WatchAPIServersResponse{Apiservers: list, Freshness: s.freshness("")}); err != nil {
				return err
			}
			sent, isFirst = now, false
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Leadership.Stopping():
			return errStopping
		case <-changed:
		case <-again.C:
		}
	}
}

// withoutTimes is a list without the fields that change all the time.
func withoutTimes(list []*bootstrapv1.APIServer) *bootstrapv1.WatchAPIServersResponse {
	kept := proto.CloneOf(&bootstrapv1.WatchAPIServersResponse{Apiservers: list})
	for _, server := range kept.GetApiservers() {
		server.ProbeTime, server.Ttl = nil, nil
	}
	return kept
}

func (s *Server) listAPIServers(ctx context.Context) ([]*bootstrapv1.APIServer, error) {
	if s.isStopping() {
		return nil, errStopping
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	list, err := s.APIServers.ListServers(ctx)
	if err != nil {
		return nil, err
	}
	planning, done := context.WithTimeout(ctx, publishedTimeout)
	defer done()
	endpoints, err := s.APIServers.PlanEndpoints(planning, list, nil)
	if err != nil {
		return apiServersOf(list, nil), nil
	}
	return apiServersOf(list, &endpoints), nil
}

// apiServersOf has one row for each address, in the order of the list. found is nil if Kubernetes
// did not answer.
func apiServersOf(list apiserverscontroller.ServerList, found *apiserverscontroller.EndpointsObservation) []*bootstrapv1.APIServer {
	var converted []*bootstrapv1.APIServer
	for rest := list.Servers; len(rest) > 0; {
		size := 1
		for size < len(rest) && rest[size].Name == rest[0].Name {
			size++
		}
		next := rowOf(rest[:size])
		next.Published, next.Reason = publicationOf(rest[0], found)
		converted, rest = append(converted, next), rest[size:]
	}
	return converted
}

// rowOf merges the servers behind one address, usually one. A ready server gives the row, and the
// remaining servers are named in it.
func rowOf(group []apiserverscontroller.KnownServer) *bootstrapv1.APIServer {
	main := max(0, slices.IndexFunc(group, func(server apiserverscontroller.KnownServer) bool { return server.Ready }))
	converted := apiServerOf(group[main])
	for i, server := range group {
		if i == main {
			continue
		}
		converted.ReplicaId += ", " + server.ReplicaID
		if !server.Ready && len(server.Problems) == 0 {
			converted.Problems = append(converted.Problems, fmt.Sprintf(
				"behind the same address, %s is not ready: %s", server.ReplicaID, server.Detail))
		}
		converted.Problems = append(converted.Problems, server.Problems...)
	}
	converted.ReplicaId = strings.Trim(converted.GetReplicaId(), ", ")
	return converted
}

// publicationOf says whether a server is an endpoint now, and why it should or should not be one.
func publicationOf(server apiserverscontroller.KnownServer, found *apiserverscontroller.EndpointsObservation) (published bool, reason string) {
	if found == nil {
		return false, reasonUnknown
	}
	published = slices.Contains(apiservers.PublishedInSlices(found.Snapshot.Slices), server.Name)
	i := slices.IndexFunc(found.Plan.Statuses, func(status apiservers.ServerStatus) bool { return status.Address == server.Address })
	switch {
	case i < 0:
		return published, reasonNotChosen
	case server.Source == apiserverscontroller.FromFlag && found.Plan.Statuses[i].Wanted:
		return published, reasonStatic
	default:
		return published, found.Plan.Statuses[i].Why
	}
}

func apiServerOf(server apiserverscontroller.KnownServer) *bootstrapv1.APIServer {
	converted := &bootstrapv1.APIServer{
		Name:        "apiservers/" + server.Name,
		Address:     server.Name,
		Port:        server.Port,
		Ready:       server.Ready,
		ProbeDetail: server.Detail,
		ProbeTime:   timeOf(server.ProbeTime),
		ReplicaId:   server.ReplicaID,
		Source:      sourceOf(server.Source),
		Problems:    slices.Clone(server.Problems),
		Key:         server.Key,
	}
	if server.TTL > 0 {
		converted.Ttl = durationpb.New(server.TTL)
	}
	return converted
}

func sourceOf(source apiserverscontroller.Source) bootstrapv1.APIServer_Source {
	return map[apiserverscontroller.Source]bootstrapv1.APIServer_Source{
		apiserverscontroller.FromSidecar:     bootstrapv1.APIServer_SOURCE_SIDECAR,
		apiserverscontroller.FromMasterLease: bootstrapv1.APIServer_SOURCE_MASTER_LEASE,
		apiserverscontroller.FromFlag:        bootstrapv1.APIServer_SOURCE_STATIC,
	}[source]
}
