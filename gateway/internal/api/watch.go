package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// collection is what replicas of a service list and watch.
type collection struct {
	*service
	server    *Server
	watch     method
	ownership merge.Ownership
	// same reports whether readers see no difference between two states of an item.
	same func(a, b merge.Item) bool
	// ended is fanin.Config.Ended.
	ended func(merge.Item) merge.Item
	// complete fills in the filter that a request of a client means. everything removes the filter
	// of the gateway's own request.
	complete, everything func(request proto.Message)
	hub                  *fanin.Hub
}

func (s *Server) collection(of *service, watch protoreflect.FullName, ownership merge.Ownership) *collection {
	return &collection{
		service: of, server: s, watch: methodNamed(watch), ownership: ownership, same: same,
		complete: func(proto.Message) {}, everything: func(proto.Message) {},
	}
}

// watchAll returns a handler that merges the watches of all replicas.
func (c *collection) watchAll() streaming {
	sources := func() ([]term.Member, <-chan struct{}) {
		changed := c.directory.Changed() // before members, or a change between the two would be missed
		return c.members(), changed
	}
	open := func(ctx context.Context, member term.Member, token string) (fanin.Stream, error) {
		return fanout.CallMember(ctx, c.connections, member, c.open(token))
	}
	cfg := fanin.Config{Sources: sources, Open: open, Leaders: c.askLeaders}
	if c.ownership == merge.Local {
		cfg.Leaders, cfg.Absent = nil, c.absentServices
	}
	return c.serve(cfg, c.allFailed)
}

// watchLeader returns a handler that follows the leader of a key from replica to replica.
func (c *collection) watchLeader(key string) streaming {
	return c.watchOne(func(ctx context.Context, _ term.Member, token string) (fanin.Stream, error) {
		return leader.Ask(ctx, c.router, key, afterFirst(ctx, c.open(token)))
	})
}

// watchAny returns a handler that watches one replica, the leader of a key if it can be reached.
func (c *collection) watchAny(key string) streaming {
	router := c.router.WithTimeout(slow * c.timeout) // some read the cluster for the first event
	return c.watchOne(func(ctx context.Context, _ term.Member, token string) (fanin.Stream, error) {
		return leader.AskAny(ctx, router, key, afterFirst(ctx, c.open(token)))
	})
}

// watchOne stands for the replica that is watched by a member without an id.
func (c *collection) watchOne(open func(context.Context, term.Member, string) (fanin.Stream, error)) streaming {
	sources := func() ([]term.Member, <-chan struct{}) {
		return []term.Member{{Service: c.name, Cluster: c.cluster}}, c.directory.Changed()
	}
	return c.serve(fanin.Config{Sources: sources, Open: open}, c.leaderFailed)
}

// serve makes the hub and returns the handler of its watches. failed converts the failures of all
// sources.
func (c *collection) serve(cfg fanin.Config, failed func([]fanout.Failure) error) streaming {
	cfg.Service, cfg.Ownership, cfg.SilenceTimeout, cfg.Same, cfg.Ended = c.name, c.ownership, c.timeout, c.same, c.ended
	c.hub = fanin.NewHub(cfg)
	c.server.hubs = append(c.server.hubs, c.hub)
	item := itemField(c.watch.response.Descriptor())
	itemType := c.watch.response.Descriptor().Fields().ByName(item).Message()
	return func(m method, request proto.Message, stream grpc.ServerStream) error {
		arguments := argumentsOf(request)
		c.complete(request)
		err := c.hub.Serve(stream.Context(), fanin.Request{
			Method: m.name(), Arguments: arguments, ResumeToken: text(request, "resume_token"), Select: selectorOf(request, itemType),
		}, func(event fanin.Event) error {
			response := m.response.New().Interface()
			set(response, "type", event.Type.Number())
			set(response, "resume_token", event.ResumeToken)
			if event.Bookmark != nil {
				set(response, "bookmark", event.Bookmark.ProtoReflect())
			} else {
				set(response, item, event.Item.ProtoReflect())
			}
			return stream.SendMsg(response)
		})
		var none fanin.NoSourceError
		if errors.As(err, &none) {
			return failed(none.Failures)
		}
		return watchEnded(err)
	}
}

// resumable gives the first page of a list the gateway's own resume token, because clients watch
// the gateway. It is empty unless the watched replica answered the list: another one may be behind.
func (c *collection) resumable(list unary) unary {
	return func(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
		token, source := "", ""
		if text(request, "page_token") == "" {
			token, source = c.hub.ResumeToken(c.watch.name(), argumentsOf(request))
		}
		answer, err := list(ctx, m, request)
		if err != nil {
			return nil, err
		}
		if sources := sourcesOf(answer); len(sources) == 0 || sources[0].GetReplicaId() != source {
			token = ""
		}
		set(answer, "resume_token", token)
		return answer, nil
	}
}

// event has the fields of an event that all watches have.
type event interface {
	proto.Message
	GetType() metav1.EventType
	GetResumeToken() string
	GetBookmark() *metav1.Bookmark
}

// open returns a call that opens the watch of a replica.
func (c *collection) open(token string) fanout.Call[fanin.Stream] {
	request := c.watch.request.New().Interface()
	set(request, "resume_token", token)
	c.everything(request)
	item := c.watch.response.Descriptor().Fields().ByName(itemField(c.watch.response.Descriptor()))
	return func(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (next fanin.Stream, err error) {
		ctx, end := context.WithCancelCause(ctx)
		defer func() {
			if err != nil {
				end(err)
			}
		}()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.watch.path)
		if err != nil {
			return nil, err
		}
		if err := stream.SendMsg(request); err != nil {
			return nil, stream.RecvMsg(c.watch.response.New().Interface()) // the cause of io.EOF
		}
		if err := stream.CloseSend(); err != nil {
			return nil, err
		}
		go probe(ctx, conn, slow*c.timeout, end)
		return func() (message fanin.Message, err error) {
			defer func() {
				if cause := context.Cause(ctx); err != nil && errors.Is(cause, errHung) {
					err = cause
				}
				if err != nil {
					end(err)
				}
			}()
			received, ok := c.watch.response.New().Interface().(event)
			if !ok {
				return fanin.Message{}, fmt.Errorf("%s is no event of a watch", c.watch.response.Descriptor().FullName())
			}
			if err := stream.RecvMsg(received); err != nil {
				return fanin.Message{}, err
			}
			message = fanin.Message{Type: received.GetType(), ResumeToken: received.GetResumeToken(), Bookmark: received.GetBookmark()}
			if message.Item, ok = received.ProtoReflect().Get(item).Message().Interface().(merge.Item); !ok {
				return fanin.Message{}, fmt.Errorf("%s of %s is no item of a list", item.Name(), c.watch.response.Descriptor().FullName())
			}
			for _, from := range message.Bookmark.GetSources() {
				if from.GetService() != member.Service || from.GetReplicaId() != member.ID {
					return fanin.Message{}, fanout.ForeignAnswer(member, from.GetService(), from.GetReplicaId())
				}
			}
			return message, nil
		}, nil
	}
}

// probePeriod is the time between two probes of a replica that is watched.
const probePeriod = 2 * time.Second

var errHung = status.Error(codes.Unavailable, "it hangs: it does not answer probes")

// probe ends a stream whose replica does not answer for limit: a watch is silent for long, and the
// kernel keeps the connections of a process that hangs. Any answer is a sign of life. It returns
// when ctx ends.
func probe(ctx context.Context, conn grpc.ClientConnInterface, limit time.Duration, end context.CancelCauseFunc) {
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		probing, cancel := context.WithTimeout(ctx, limit)
		_, _ = healthv1.NewHealthClient(conn).Check(probing, &healthv1.HealthCheckRequest{})
		late := probing.Err() != nil
		cancel()
		if late {
			end(errHung) // changes nothing if ctx has ended
			return
		}
	}
}

// afterFirst returns a call that opens a stream and waits for its first message, so that a replica
// that does not answer in time is skipped. The stream outlives the call and ends with ctx.
func afterFirst(ctx context.Context, open fanout.Call[fanin.Stream]) fanout.Call[fanin.Stream] {
	return func(calling context.Context, conn grpc.ClientConnInterface, member term.Member) (fanin.Stream, error) {
		ctx, end := context.WithCancel(ctx)
		release := context.AfterFunc(calling, end)
		next, err := open(ctx, conn, member)
		var first fanin.Message
		if err == nil {
			first, err = next()
		}
		if !release() { // the call ended first
			err = status.FromContextError(calling.Err()).Err()
		}
		if err != nil {
			end()
			return nil, err
		}
		started := false
		return func() (fanin.Message, error) {
			if started {
				return next()
			}
			started = true
			return first, nil
		}, nil
	}
}
