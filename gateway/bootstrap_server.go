package gateway

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/voice"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	// bootstrapService is the service that keeps what a cluster needs before anything else.
	bootstrapService = "bootstrapsvc"
	// theTerm is what its replicas own: there is one term for all.
	theTerm = "term"
	// applyTimeout is how long a replica may take to apply a plan, step by step.
	applyTimeout = time.Minute
)

// bootstrapServer answers BootstrapService. The holder of the term alone knows of findings and repairs them; the rest any replica
// reads from the cluster.
type bootstrapServer struct {
	gatewayv1.UnimplementedBootstrapServiceServer

	*replicas
	// holder finds who holds the term; at work it has longer to answer, and longest to apply a plan.
	holder, atWork, applying *leader.Router
	findings                 *voice.Hub[*bootstrapv1.Finding]
	apiservers               *voice.Hub[*bootstrapv1.WatchAPIServersResponse]
}

// newBootstrapServer takes a pool whose connections do not retry.
func newBootstrapServer(cluster string, directory Directory, pool *fanout.Pool, timeout time.Duration) *bootstrapServer {
	s := &bootstrapServer{replicas: &replicas{cluster: cluster, service: bootstrapService, directory: directory, pool: pool, timeout: timeout}}
	s.holder = leader.New(leader.Config{Members: s.members, Connections: pool, Timeout: timeout})
	s.atWork, s.applying = s.holder.Patient(workFactor*timeout), s.holder.Patient(applyTimeout)
	s.findings = voice.New(voice.Config[*bootstrapv1.Finding]{
		Open: s.openFindings, Name: (*bootstrapv1.Finding).GetName, Departed: departed, Changed: directory.Changed, Patience: timeout,
	})
	s.apiservers = voice.New(voice.Config[*bootstrapv1.WatchAPIServersResponse]{
		Open:     s.openAPIServers,
		Name:     func(*bootstrapv1.WatchAPIServersResponse) string { return "apiservers" }, // a list is one item
		Departed: func(list *bootstrapv1.WatchAPIServersResponse) *bootstrapv1.WatchAPIServersResponse { return list },
		Changed:  directory.Changed, Patience: timeout,
	})
	return s
}

// run feeds the watches until ctx ends.
func (s *bootstrapServer) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.findings.Run(ctx) })
	group.Go(func() error { return s.apiservers.Run(ctx) })
	return group.Wait()
}

// departed is a finding that ended while nobody told of it: how, is not known here.
func departed(finding *bootstrapv1.Finding) *bootstrapv1.Finding {
	finding = proto.CloneOf(finding)
	finding.State = bootstrapv1.Finding_STATE_UNSPECIFIED
	return finding
}

func (s *bootstrapServer) openFindings(ctx context.Context) (voice.Stream[*bootstrapv1.Finding], error) {
	return leader.Ask(ctx, s.holder, theTerm, func(asking context.Context, conn grpc.ClientConnInterface) (voice.Stream[*bootstrapv1.Finding], error) {
		return begun(ctx, asking, func(ctx context.Context) (voice.Stream[*bootstrapv1.Finding], error) {
			stream, err := bootstrapv1.NewBootstrapServiceClient(conn).WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{})
			return func() (voice.Message[*bootstrapv1.Finding], error) {
				event, err := stream.Recv()
				return findingMessage(event), err
			}, err
		})
	})
}

func findingMessage(event *bootstrapv1.WatchFindingsResponse) voice.Message[*bootstrapv1.Finding] {
	message := voice.Message[*bootstrapv1.Finding]{Item: event.GetFinding()}
	switch event.GetType() {
	case bootstrapv1.WatchFindingsResponse_TYPE_ADDED, bootstrapv1.WatchFindingsResponse_TYPE_MODIFIED:
		message.Put = message.Item.GetName() != "" // else it says nothing of anything
	case bootstrapv1.WatchFindingsResponse_TYPE_DELETED:
		message.Remove = true
	case bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK:
		message.Bookmark = true
	}
	return message
}

func (s *bootstrapServer) openAPIServers(ctx context.Context) (voice.Stream[*bootstrapv1.WatchAPIServersResponse], error) {
	return leader.Any(ctx, s.holder, theTerm, func(asking context.Context, conn grpc.ClientConnInterface) (voice.Stream[*bootstrapv1.WatchAPIServersResponse], error) {
		return begun(ctx, asking, func(ctx context.Context) (voice.Stream[*bootstrapv1.WatchAPIServersResponse], error) {
			stream, err := bootstrapv1.NewBootstrapServiceClient(conn).WatchAPIServers(ctx, &bootstrapv1.WatchAPIServersRequest{})
			return func() (voice.Message[*bootstrapv1.WatchAPIServersResponse], error) {
				list, err := stream.Recv()
				return voice.Message[*bootstrapv1.WatchAPIServersResponse]{Put: true, Item: list, Bookmark: true}, err // each is everything
			}, err
		})
	})
}

// begun opens a stream that ends with ctx, and returns it once it has said something, for which it has until asking ends.
func begun[T any](ctx, asking context.Context, open func(context.Context) (voice.Stream[T], error)) (voice.Stream[T], error) {
	ctx, end := context.WithCancel(ctx)
	release := context.AfterFunc(asking, end)
	next, err := open(ctx)
	var first voice.Message[T]
	if err == nil {
		first, err = next()
	}
	if !release() { // it took too long, whatever came of it
		err = status.FromContextError(asking.Err()).Err()
	}
	if err != nil {
		end()
		return nil, err
	}
	said := false
	return func() (voice.Message[T], error) {
		if !said {
			said = true
			return first, nil
		}
		return next()
	}, nil
}

// unheard tells a caller why nobody tells anything.
func (s *bootstrapServer) unheard(err error) error {
	var unreachable leader.UnreachableError
	switch {
	case errors.As(err, &unreachable):
		return noSource(s.cluster, unreachable.Error(), unreachable.Failures, s.directory.Check())
	case rpcerror.ReasonOf(err) != "":
		return err
	}
	return noSource(s.cluster, nobodyAnswered, s.unheardOf(err), s.directory.Check())
}

// unheardOf says who should be heard and is not; at least one, although nobody may know who that would be.
func (s *bootstrapServer) unheardOf(err error) []*gatewayv1.SourceStatus {
	var unreachable leader.UnreachableError
	if errors.As(err, &unreachable) && len(unreachable.Failures) > 0 {
		return unreachable.Failures
	}
	return []*gatewayv1.SourceStatus{fanout.Failure(term.Member{Service: s.service, Cluster: s.cluster}, err, 0)}
}
