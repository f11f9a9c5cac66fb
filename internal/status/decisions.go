package status

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

const (
	listDecisions  = "trivet.status.v1.DecisionService/ListDecisions"
	watchDecisions = "trivet.status.v1.DecisionService/WatchDecisions"
	// rememberedDeletions is how many decisions may be dropped before a watch has to say so to a
	// slow reader.
	rememberedDeletions = 4096
	// decisionsPause is the shortest time between two reads of the log for watches.
	decisionsPause = 50 * time.Millisecond
)

// DecisionServer implements DecisionService for the decisions of this process. It is safe for
// concurrent use. It reads the log only while it is asked, so that a process without readers has no
// further work.
type DecisionServer struct {
	statusv1.UnimplementedDecisionServiceServer
	member term.Member
	log    *decisions.Log
	cache  *watchcache.Cache[*statusv1.Decision]

	mu sync.Mutex // guards the fields below
	at decisions.Cursor
	// cached are the decisions in the cache, by ring, the oldest first.
	cached map[decisions.Ring][]cachedDecision
}

type cachedDecision struct {
	number   uint64
	decision *statusv1.Decision
}

// NewDecisionServer returns a server of the decisions of one replica.
func NewDecisionServer(member term.Member, log *decisions.Log) *DecisionServer {
	return &DecisionServer{
		member: member, log: log, cached: map[decisions.Ring][]cachedDecision{},
		cache: watchcache.New(watchcache.Config[*statusv1.Decision]{Name: (*statusv1.Decision).GetName, Deletions: rememberedDeletions}),
	}
}

// Register adds the service to registrar.
func (s *DecisionServer) Register(registrar grpc.ServiceRegistrar) {
	statusv1.RegisterDecisionServiceServer(registrar, s)
}

// decisionFilter selects decisions.
type decisionFilter struct {
	resources []string
	actions   []statusv1.Decision_Action
	services  []string
	from      time.Time
}

func (f decisionFilter) selects(d *statusv1.Decision) bool {
	return (len(f.services) == 0 || slices.Contains(f.services, d.GetService())) &&
		(len(f.actions) == 0 || slices.Contains(f.actions, d.GetAction())) &&
		(len(f.resources) == 0 || slices.ContainsFunc(d.GetResources(), func(of string) bool { return slices.Contains(f.resources, of) })) &&
		!d.GetDecideTime().AsTime().Before(f.from)
}

// arguments returns the filter as text, for tokens.
func (f decisionFilter) arguments() string {
	actions := make([]string, len(f.actions))
	for i, action := range f.actions {
		actions[i] = strconv.Itoa(int(action))
	}
	return strings.Join([]string{
		strings.Join(f.resources, "\x01"), strings.Join(actions, "\x01"), strings.Join(f.services, "\x01"), f.from.String(),
	}, "\x02")
}

// ListDecisions returns the kept decisions of this replica, ordered by name and so by time.
func (s *DecisionServer) ListDecisions(_ context.Context, request *statusv1.ListDecisionsRequest) (*statusv1.ListDecisionsResponse, error) {
	filter := decisionFilter{resources: request.GetResources(), actions: request.GetActions(), services: request.GetServices()}
	if from := request.GetStartTime(); from != nil {
		if err := from.CheckValid(); err != nil {
			return nil, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, fmt.Sprintf("start_time: %s", err), rpcerror.WithField("start_time", err.Error()))
		}
		filter.from = from.AsTime()
	}
	after := ""
	if token := request.GetPageToken(); token != "" {
		var err error
		if after, err = pagetoken.Parse(token, listDecisions, filter.arguments()); err != nil {
			return nil, rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
		}
	}
	response := &statusv1.ListDecisionsResponse{Sources: s.sources()}
	size := answer.PageSize(request.GetPageSize(), defaultPageSize, maxPageSize)
	kept, _, _ := s.log.After(decisions.Cursor{})
	for i := range kept {
		if kept[i].Time.Before(filter.from) {
			continue
		}
		decision := s.decision(&kept[i])
		if decision.GetName() <= after || !filter.selects(decision) {
			continue
		}
		if len(response.Decisions) == size {
			response.NextPageToken = pagetoken.Encode(response.Decisions[size-1].GetName(), listDecisions, filter.arguments())
			break
		}
		response.Decisions = append(response.Decisions, decision)
	}
	return response, nil
}

// WatchDecisions sends decisions until the call ends.
func (s *DecisionServer) WatchDecisions(request *statusv1.WatchDecisionsRequest, stream grpc.ServerStreamingServer[statusv1.WatchDecisionsResponse]) error {
	filter := decisionFilter{resources: request.GetResources(), actions: request.GetActions(), services: request.GetServices()}
	ctx, cancel := context.WithCancel(stream.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	s.fill()
	following.Go(func() { s.follow(ctx) })
	return s.cache.Serve(ctx, watchcache.Request[*statusv1.Decision]{
		Method: watchDecisions, Arguments: filter.arguments(), ResumeToken: request.GetResumeToken(), Select: filter.selects,
		Bookmark: func() *metav1.Bookmark { return &metav1.Bookmark{Sources: s.sources()} },
		Pause:    decisionsPause,
	}, func(event watchcache.Event[*statusv1.Decision]) error {
		return stream.Send(&statusv1.WatchDecisionsResponse{
			Type: event.Type, Decision: event.Item, ResumeToken: event.ResumeToken, Bookmark: event.Bookmark,
		})
	})
}

// follow fills the cache until ctx ends.
func (s *DecisionServer) follow(ctx context.Context) {
	pause := time.NewTicker(decisionsPause)
	defer pause.Stop()
	for {
		s.mu.Lock()
		at := s.at
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-s.log.Changed(at):
			s.fill()
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// fill takes in what the log has recorded and dropped since the last call.
func (s *DecisionServer) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, _, end := s.log.After(s.at)
	s.at = end
	added := make([]*statusv1.Decision, len(kept))
	for i := range kept {
		added[i] = s.decision(&kept[i])
		s.cached[kept[i].Ring] = append(s.cached[kept[i].Ring], cachedDecision{number: kept[i].Number, decision: added[i]})
	}
	dropped := s.log.Dropped()
	var deleted []*statusv1.Decision
	for ring, cached := range s.cached {
		gone := 0
		for gone < len(cached) && cached[gone].number <= dropped[ring] {
			deleted = append(deleted, cached[gone].decision)
			gone++
		}
		s.cached[ring] = slices.Delete(cached, 0, gone)
	}
	s.cache.Put(added...)
	s.cache.Delete(deleted...)
}

func (s *DecisionServer) sources() []*metav1.Source {
	return []*metav1.Source{answer.Replica{Service: s.member.Service, ID: s.member.ID}.Source(0, nil)}
}

// decision converts a decision. Its name sorts by time.
func (s *DecisionServer) decision(d *decisions.Decision) *statusv1.Decision {
	converted := &statusv1.Decision{
		Name:       fmt.Sprintf("decisions/%s-%s-%s", d.Time.UTC().Format("20060102T150405.000000000"), s.member.Service, s.member.ID),
		DecideTime: prototime.New(d.Time), Service: s.member.Service, ReplicaId: s.member.ID,
		Action:  statusv1.Decision_Action(statusv1.Decision_Action_value["ACTION_"+d.Action.String()]),
		Message: wording.Valid(d.Message), Resources: resourcesOf(d, s.member.Service), Epoch: d.Epoch, ResourceVersion: d.ResourceVersion,
		InputAge: duration(d.InputAge), CreatedCount: d.Created, UpdatedCount: d.Updated, DeletedCount: d.Deleted,
		Ring: statusv1.Decision_Ring(d.Ring) + statusv1.Decision_RING_CLUSTER, Number: int64(d.Number),
	}
	if d.Epoch != 0 {
		converted.Shard = &d.Shard
	}
	if o := d.Object; o.Kind != "" {
		converted.Object = &metav1.ObjectReference{
			ApiVersion: o.APIVersion, Kind: o.Kind, Namespace: wording.Valid(o.Namespace), Name: wording.Valid(o.Name), Uid: wording.Valid(o.UID),
		}
	}
	if d.Action == decisions.SlicesWritten && d.Message == "" {
		converted.Message = slicesMessage(d)
	}
	return converted
}

// slicesMessage is made here, so that recording needs no text.
func slicesMessage(d *decisions.Decision) string {
	var parts []string
	for _, part := range []struct {
		count int32
		verb  string
	}{{d.Created, "created"}, {d.Updated, "updated"}, {d.Deleted, "deleted"}} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.count, part.verb))
		}
	}
	return "EndpointSlices: " + strings.Join(parts, ", ")
}

// resourcesOf returns the resource names of a decision, that of its object first.
func resourcesOf(d *decisions.Decision, service string) []string {
	var resources []string
	switch o := d.Object; {
	case o.Kind == "":
	case o.Kind == "Shard":
		resources = append(resources, "shards/"+service+"/"+o.Name)
	case o.Namespace == "":
		resources = append(resources, pluralOf(o.Kind)+"/"+wording.Valid(o.Name))
	default:
		resources = append(resources, "namespaces/"+wording.Valid(o.Namespace)+"/"+pluralOf(o.Kind)+"/"+wording.Valid(o.Name))
	}
	if d.Node != "" {
		resources = append(resources, "nodes/"+wording.Valid(d.Node))
	}
	return resources
}

// pluralOf returns the plural of a kind as resource names have it.
func pluralOf(kind string) string {
	lower := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(lower, "endpoints"):
		return lower
	case strings.HasSuffix(lower, "s"):
		return lower + "es"
	default:
		return lower + "s"
	}
}
