package merge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Source is one replica that was asked for its status, and the outcome.
type Source struct {
	// Replica is the replica that was asked, as its member key describes it.
	Replica *statusv1.Replica
	// Answer is its response; nil if the call failed.
	Answer *statusv1.GetStatusResponse
	// Code is the canonical name of the gRPC status code, for example "DEADLINE_EXCEEDED". It is
	// read only without an Answer.
	Code string
	// Message says why there is no Answer.
	Message string
	// Latency is the duration of the call.
	Latency time.Duration
}

// Status merges the sources of a cluster as of now. It lists leasesvc, bootstrapsvc, slicesvc and
// gateway in this order, with or without replicas; services of later versions follow by name.
func Status(cluster string, sources []Source, now time.Time) *gatewayv1.ClusterStatus {
	asked := make([]Source, len(sources))
	for i, source := range sources {
		asked[i] = verified(source)
	}
	slices.SortStableFunc(asked, compareSources)

	status := &gatewayv1.ClusterStatus{Cluster: cluster, Healthy: true, MergeTime: timestamppb.New(now)}
	for _, service := range serviceNames(asked) {
		merged := serviceStatus(service, sourcesOf(asked, service))
		status.Healthy = status.Healthy && merged.Healthy
		status.Services = append(status.Services, merged)
	}
	for _, source := range asked {
		status.Sources = append(status.Sources, sourceStatus(source))
	}
	return status
}

// Partial reports whether a source failed, so that the status may be incomplete.
func Partial(status *gatewayv1.ClusterStatus) bool {
	return slices.ContainsFunc(status.GetSources(), func(source *gatewayv1.SourceStatus) bool { return !source.GetOk() })
}

// Answered reports whether at least one source answered.
func Answered(status *gatewayv1.ClusterStatus) bool {
	return slices.ContainsFunc(status.GetSources(), (*gatewayv1.SourceStatus).GetOk)
}

// verified drops an answer that comes from another replica than the one that was asked.
func verified(source Source) Source {
	if source.Answer == nil {
		return source
	}
	want, got := source.Replica, source.Answer.GetReplica()
	if got.GetId() == want.GetId() && got.GetService() == want.GetService() {
		return source
	}
	source.Answer = nil
	source.Code = "NOT_FOUND"
	source.Message = fmt.Sprintf("%s answered as %s %q: the replica that was asked is gone and its address belongs to another",
		want.GetGrpcAddress(), got.GetService(), got.GetId())
	return source
}

func compareSources(a, b Source) int {
	return cmp.Or(
		cmp.Compare(a.Replica.GetService(), b.Replica.GetService()),
		cmp.Compare(a.Replica.GetId(), b.Replica.GetId()),
	)
}

func sourceStatus(source Source) *gatewayv1.SourceStatus {
	status := &gatewayv1.SourceStatus{
		Replica: source.Replica,
		Ok:      source.Answer != nil,
		Code:    "OK",
		Latency: durationpb.New(source.Latency),
	}
	if !status.Ok {
		status.Code, status.Message = cmp.Or(source.Code, "UNKNOWN"), source.Message
	}
	return status
}

// serviceNames returns the services of this version, then the other services that are registered.
func serviceNames(sources []Source) []string {
	names := []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"}
	for _, source := range sources { // sorted by service
		if name := source.Replica.GetService(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func sourcesOf(sources []Source, service string) []Source {
	var own []Source
	for _, source := range sources {
		if source.Replica.GetService() == service {
			own = append(own, source)
		}
	}
	return own
}

// serviceStatus merges the sources of one service, which come ordered by replica.
func serviceStatus(service string, sources []Source) *gatewayv1.ServiceStatus {
	status := &gatewayv1.ServiceStatus{Service: service}
	for _, source := range sources {
		if source.Answer != nil {
			status.Replicas = append(status.Replicas, source.Answer)
		}
	}
	status.Terms = mergeTerms(status.Replicas)
	status.Leader = holderOfFirst(status.Terms)
	status.Problems = slices.Concat(replicaProblems(sources), termProblems(status, sources))
	status.Healthy = len(status.Problems) == 0
	return status
}

// mergeTerms returns the best report about each shard, ordered by shard.
func mergeTerms(answers []*statusv1.GetStatusResponse) []*statusv1.Term {
	best := map[int32]*statusv1.Term{}
	for _, answer := range answers {
		for _, term := range answer.GetTerms() {
			if known, ok := best[term.GetShard()]; !ok || better(term, known) {
				best[term.GetShard()] = term
			}
		}
	}
	terms := make([]*statusv1.Term, 0, len(best))
	for _, term := range best {
		terms = append(terms, term)
	}
	slices.SortFunc(terms, func(a, b *statusv1.Term) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
	return terms
}

// better prefers the higher epoch and, for equal epochs, the report of the holder itself.
func better(term, known *statusv1.Term) bool {
	if term.GetEpoch() != known.GetEpoch() {
		return term.GetEpoch() > known.GetEpoch()
	}
	return term.GetHeldHere() && !known.GetHeldHere()
}

func holderOfFirst(terms []*statusv1.Term) string {
	for _, term := range terms {
		if term.GetShard() == 0 {
			return term.GetReplicaId()
		}
	}
	return ""
}

func replicaProblems(sources []Source) []string {
	if len(sources) == 0 {
		return []string{"no replica is registered"}
	}
	var problems []string
	for _, source := range sources {
		id := source.Replica.GetId()
		switch {
		case source.Answer == nil:
			problems = append(problems, fmt.Sprintf("replica %s did not answer: %s", id, failure(source)))
		case !source.Answer.GetReady():
			problems = append(problems, fmt.Sprintf("replica %s is not ready: %s", id, unreadyReasons(source.Answer)))
		}
	}
	return problems
}

func failure(source Source) string {
	code := cmp.Or(source.Code, "UNKNOWN")
	if source.Message == "" {
		return code
	}
	return code + ": " + source.Message
}

func unreadyReasons(answer *statusv1.GetStatusResponse) string {
	return cmp.Or(strings.Join(answer.GetUnreadyReasons(), "; "), "it gives no reason")
}

// termProblems finds shards without a registered holder. Without an answer it reports nothing: the
// holders are unknown then, and replicaProblems has the cause.
func termProblems(status *gatewayv1.ServiceStatus, sources []Source) []string {
	if status.Service == "gateway" || len(status.Replicas) == 0 {
		return nil
	}
	if len(status.Terms) == 0 {
		return []string{"no replica reports a shard, so there is no leader"}
	}
	var problems []string
	if unheld := unheldShards(status.Terms); len(unheld) > 0 {
		problems = append(problems, unheld.sentence("has no leader", "have no leader"))
	}
	return append(problems, unregisteredHolders(status.Terms, sources)...)
}

// unheldShards returns the shards without a holder, and those that are missing below the highest
// known shard.
func unheldShards(terms []*statusv1.Term) shardRanges {
	var unheld shardRanges
	next := int64(0)
	for _, term := range terms {
		shard := int64(term.GetShard())
		if shard > next {
			unheld = unheld.with(next, shard-1)
		}
		if term.GetReplicaId() == "" {
			unheld = unheld.with(shard, shard)
		}
		next = max(next, shard+1)
	}
	return unheld
}

// unregisteredHolders finds holders that are not registered: they ended a moment ago, or a replica
// reports stale terms.
func unregisteredHolders(terms []*statusv1.Term, sources []Source) []string {
	shards := map[string]shardRanges{}
	var holders []string
	for _, term := range terms {
		holder := term.GetReplicaId()
		if holder == "" || isRegistered(sources, holder) {
			continue
		}
		if _, seen := shards[holder]; !seen {
			holders = append(holders, holder)
		}
		shards[holder] = shards[holder].with(int64(term.GetShard()), int64(term.GetShard()))
	}
	var problems []string
	for _, holder := range holders {
		problems = append(problems, fmt.Sprintf("%s by %s, which is not registered", shards[holder].sentence("is held", "are held"), holder))
	}
	return problems
}

func isRegistered(sources []Source, id string) bool {
	return slices.ContainsFunc(sources, func(source Source) bool { return source.Replica.GetId() == id })
}

// shardRanges is an ascending list of shard ranges, both ends included. Shard numbers come from the
// wire: a gap below a wrong number may span two billion shards.
type shardRanges [][2]int64

// with appends a range that begins after all others; it extends the last range if they touch.
func (r shardRanges) with(first, last int64) shardRanges {
	if n := len(r); n > 0 && r[n-1][1]+1 == first {
		r[n-1][1] = last
		return r
	}
	return append(r, [2]int64{first, last})
}

// sentence names the shards, followed by one of the two predicates.
func (r shardRanges) sentence(one, many string) string {
	if len(r) == 1 && r[0][0] == r[0][1] {
		return fmt.Sprintf("shard %d %s", r[0][0], one)
	}
	texts := make([]string, len(r))
	for i, shards := range r {
		texts[i] = fmt.Sprintf("%d-%d", shards[0], shards[1])
		if shards[0] == shards[1] {
			texts[i] = fmt.Sprint(shards[0])
		}
	}
	return fmt.Sprintf("shards %s %s", strings.Join(texts, ", "), many)
}
