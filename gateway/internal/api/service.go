package api

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// service is one service of the cluster, and how to ask its replicas.
type service struct {
	cluster, name string
	// names are the services whose replicas are asked: name, or several without a common name.
	names       []string
	directory   Directory
	connections *fanout.Pool
	timeout     time.Duration
	router      *leader.Router

	mu sync.Mutex // guards the fields below
	// leaders has the leader of each shard, as a replica told at read.
	leaders []string
	read    time.Time
}

// changePatience is how long a question that only reads waits for a change of the leader: longer
// than an orderly one takes, and shorter than the end of the session of a leader that crashed.
const changePatience = 2 * time.Second

func newService(cfg Config, name string) *service {
	s := newServices(cfg, name)
	s.name = name
	return s
}

// newServices returns several services whose replicas are asked together.
func newServices(cfg Config, names ...string) *service {
	s := &service{cluster: cfg.Cluster, names: names, directory: cfg.Directory, connections: cfg.Connections, timeout: cfg.Timeout}
	s.router = leader.New(s.members, cfg.Connections, cfg.Timeout).WithPatience(changePatience)
	return s
}

// members returns the replicas of the service, or of all services.
func (s *service) members() []term.Member {
	var own []term.Member
	for _, member := range s.directory.Members() {
		if slices.Contains(s.names, member.Service) {
			own = append(own, member)
		}
	}
	return own
}

// absentServices returns the services without a registered replica.
func (s *service) absentServices() []*metav1.MissingPart {
	members := s.directory.Members()
	var absent []*metav1.MissingPart
	for _, name := range s.names {
		if !slices.ContainsFunc(members, func(m term.Member) bool { return m.Service == name }) {
			absent = append(absent, merge.Absent(name))
		}
	}
	return absent
}

// keyOf returns the key of the leader that answers a request.
type keyOf func(request proto.Message) string

func byName(request proto.Message) string { return text(request, "name") }

func constant(key string) keyOf { return func(proto.Message) string { return key } }

// leader returns the answer of the leader of a key.
func (s *service) leader(key keyOf, timeout time.Duration) unary {
	router := s.router.WithTimeout(timeout)
	return func(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
		answer, err := leader.Ask(ctx, router, key(request), call(m, request))
		return answer, s.asked(ctx, err)
	}
}

// any returns the answer of any replica, the leader of a key first.
func (s *service) any(key keyOf, timeout time.Duration) unary {
	router := s.router.WithTimeout(timeout)
	return func(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
		answer, err := leader.AskAny(ctx, router, key(request), call(m, request))
		return answer, s.asked(ctx, err)
	}
}

// write hands a request that writes to the leader of a key. A request without an id gets one, so
// that it can be repeated at the replica that may have carried it out.
func (s *service) write(key keyOf, timeout time.Duration) unary {
	router := s.router.WithTimeout(timeout)
	return func(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
		if isSet(request, "validate_only") {
			answer, err := leader.Ask(ctx, router, key(request), call(m, request))
			return answer, s.asked(ctx, err)
		}
		if id, has := get(request, "request_id").(string); has && id == "" {
			request = proto.Clone(request)
			set(request, "request_id", uuid.NewString())
		}
		answer, err := leader.Write(ctx, router, key(request), text(request, "request_id") != "", writeCall(m, request))
		return answer, s.written(ctx, request, err)
	}
}

// writeOrValidate is write, except that any replica can answer a request with validate_only.
func (s *service) writeOrValidate(key keyOf, timeout time.Duration, validate unary) unary {
	write := s.write(key, timeout)
	return func(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
		if isSet(request, "validate_only") {
			return validate(ctx, m, request)
		}
		return write(ctx, m, request)
	}
}

// call returns a call of one method with one request.
func call(m method, request proto.Message, options ...grpc.CallOption) fanout.Call[proto.Message] {
	return func(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (proto.Message, error) {
		answer := m.response.New().Interface()
		if err := conn.Invoke(ctx, m.path, request, answer, options...); err != nil {
			return nil, distrusted(err)
		}
		if sources := sourcesOf(answer); len(sources) > 0 {
			if from := sources[0]; from.GetService() != member.Service || from.GetReplicaId() != member.ID {
				return nil, fanout.ForeignAnswer(member, from.GetService(), from.GetReplicaId())
			}
		}
		return answer, nil
	}
}

// writeCall is call, with LostError if the replica received the request and gave no answer.
func writeCall(m method, request proto.Message) fanout.Call[proto.Message] {
	return func(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (proto.Message, error) {
		var reached peer.Peer // stays empty if the request was not sent
		answer, err := call(m, request, grpc.Peer(&reached))(ctx, conn, member)
		isDistrust := errors.As(err, &distrustError{})
		if err != nil && reached.Addr != nil && rpcerror.ReasonOf(err) == "" && !isDistrust {
			err = fanout.LostError{Err: err}
		}
		return answer, err
	}
}

// asked converts an error of package leader.
func (s *service) asked(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // the replicas did not fail: the caller left
	}
	var unreached leader.UnreachableError
	if errors.As(err, &unreached) {
		return s.unreachable(unreached.Error(), unreached.Failures)
	}
	return err
}

// written is asked for a request that writes: the error names the id of a request without an
// answer.
func (s *service) written(ctx context.Context, request proto.Message, err error) error {
	var unreached leader.UnreachableError
	if id := text(request, "request_id"); id != "" && ctx.Err() == nil && errors.As(err, &unreached) && unreached.Lost {
		return s.unreachable(unreached.Error(), unreached.Failures, rpcerror.WithMetadata("request_id", id))
	}
	return s.asked(ctx, err)
}
