package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/watchcache"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

const (
	// publishedTimeout bounds the reads of what is published. The list is needed most while a
	// kube-apiserver hangs, and is then sent without them.
	publishedTimeout = 2 * time.Second
	// apiserversPeriod is how often a watch reads again although no key changed: probes and what is
	// published may have changed.
	apiserversPeriod = 2 * time.Second

	defaultAPIServersPage, maxAPIServersPage = 500, 5000
)

// apiserverServer implements APIServerService.
type apiserverServer struct {
	bootstrapv1.UnimplementedAPIServerServiceServer
	replica

	cache  *watchcache.Cache[*bootstrapv1.APIServer]
	poller *poller
}

func newAPIServerServer(r replica) *apiserverServer {
	s := &apiserverServer{replica: r, cache: watchcache.New(watchcache.Config[*bootstrapv1.APIServer]{
		Name: (*bootstrapv1.APIServer).GetName,
		Same: func(a, b *bootstrapv1.APIServer) bool { return proto.Equal(withoutTimes(a), withoutTimes(b)) },
	})}
	s.poller = newPoller(pollerConfig{replica: r, period: apiserversPeriod, watch: r.APIServers.WatchServers, read: func(ctx context.Context) error {
		list, err := s.list(ctx)
		if err == nil {
			s.cache.Replace(list)
		}
		return err
	}})
	return s
}

// withoutTimes returns a server without the fields that change all the time.
func withoutTimes(server *bootstrapv1.APIServer) *bootstrapv1.APIServer {
	kept := proto.CloneOf(server)
	kept.ProbeTime, kept.Ttl = nil, nil
	return kept
}

func (s *apiserverServer) GetAPIServer(ctx context.Context, request *bootstrapv1.GetAPIServerRequest) (*bootstrapv1.GetAPIServerResponse, error) {
	list, err := s.list(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	i := slices.IndexFunc(list, func(server *bootstrapv1.APIServer) bool { return server.GetName() == request.GetName() })
	if i < 0 {
		return nil, rpcerror.New(codes.NotFound, APIServerNotFound, fmt.Sprintf("no kube-apiserver %q is known", request.GetName()))
	}
	return &bootstrapv1.GetAPIServerResponse{Apiserver: list[i], Sources: s.sources(time.Now())}, nil
}

func (s *apiserverServer) ListAPIServers(ctx context.Context, request *bootstrapv1.ListAPIServersRequest) (*bootstrapv1.ListAPIServersResponse, error) {
	const method = bootstrapv1.APIServerService_ListAPIServers_FullMethodName
	response := &bootstrapv1.ListAPIServersResponse{}
	position := ""
	if token := request.GetPageToken(); token != "" {
		var err error
		if position, err = pagetoken.Parse(token, method); err != nil {
			return nil, s.statusOf(ctx, err)
		}
	} else {
		// Before the list is read, so that a watch misses nothing.
		response.ResumeToken = s.cache.ResumeToken(bootstrapv1.APIServerService_WatchAPIServers_FullMethodName, "")
	}
	list, err := s.list(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	if request.GetPageToken() == "" {
		s.cache.Put(list...) // else a watch from here would not know what to delete
	}
	size := answer.PageSize(request.GetPageSize(), defaultAPIServersPage, maxAPIServersPage)
	after := func(server *bootstrapv1.APIServer) bool {
		return position == "" || compareAddresses(server.GetAddress(), position) > 0
	}
	page, last, more := pageOf(list, size, after, func(server *bootstrapv1.APIServer) *bootstrapv1.APIServer { return server })
	response.Apiservers, response.Sources = page, s.sources(time.Now())
	if more {
		response.NextPageToken = pagetoken.Encode(last.GetAddress(), method)
	}
	return response, nil
}

func (s *apiserverServer) WatchAPIServers(request *bootstrapv1.WatchAPIServersRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse]) error {
	watch := watchcache.Request[*bootstrapv1.APIServer]{
		Method: bootstrapv1.APIServerService_WatchAPIServers_FullMethodName, ResumeToken: request.GetResumeToken(),
	}
	return serveWatch(stream.Context(), s.poller, s.cache, watch, func(e watchcache.Event[*bootstrapv1.APIServer]) error {
		return stream.Send(&bootstrapv1.WatchAPIServersResponse{Type: e.Type, Apiserver: e.Item, ResumeToken: e.ResumeToken, Bookmark: e.Bookmark})
	})
}

// list reads all known servers, ordered by address.
func (s *apiserverServer) list(ctx context.Context) ([]*bootstrapv1.APIServer, error) {
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
