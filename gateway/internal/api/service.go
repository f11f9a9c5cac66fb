package api

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/internal/term"
)

// service is one service of the cluster, and how to ask its replicas.
type service struct {
	cluster, name string
	directory     Directory
	connections   *fanout.Pool
	timeout       time.Duration
	router        *leader.Router
}

func newService(cfg Config, name string) *service {
	s := &service{cluster: cfg.Cluster, name: name, directory: cfg.Directory, connections: cfg.Connections, timeout: cfg.Timeout}
	s.router = leader.New(s.members, cfg.Connections, cfg.Timeout)
	return s
}

// members returns the replicas of the service.
func (s *service) members() []term.Member {
	var own []term.Member
	for _, member := range s.directory.Members() {
		if member.Service == s.name {
			own = append(own, member)
		}
	}
	return own
}

// sources returns the replicas, and a channel that is closed when they change.
func (s *service) sources() ([]term.Member, <-chan struct{}) {
	changed := s.directory.Changed() // before members, or a change between the two would be missed
	return s.members(), changed
}

// termHolder returns one source that stands for the replica that holds the term, and a channel that
// is closed when the replicas change.
func (s *service) termHolder() ([]term.Member, <-chan struct{}) {
	return []term.Member{{Service: s.name, Cluster: s.cluster}}, s.directory.Changed()
}

// rpc returns a call of one method with one request.
func rpc[Client, Request, Response any](
	newClient func(grpc.ClientConnInterface) Client,
	method func(Client, context.Context, Request, ...grpc.CallOption) (Response, error),
	request Request,
) fanout.Call[Response] {
	return func(ctx context.Context, conn grpc.ClientConnInterface) (Response, error) {
		return method(newClient(conn), ctx, request)
	}
}

// askHolder asks the holder of a key.
func askHolder[Answer any](ctx context.Context, s *service, router *leader.Router, key string, call fanout.Call[Answer]) (Answer, error) {
	answer, err := leader.Ask(ctx, router, key, call)
	if err != nil {
		err = s.askFailed(ctx, err)
	}
	return answer, err
}

// askAny asks any replica, the holder of a key first.
func askAny[Answer any](ctx context.Context, s *service, router *leader.Router, key string, call fanout.Call[Answer]) (Answer, error) {
	answer, err := leader.AskAny(ctx, router, key, call)
	if err != nil {
		err = s.askFailed(ctx, err)
	}
	return answer, err
}
