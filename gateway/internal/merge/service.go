package merge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

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

// mergeTerms keeps the best report about each shard, ordered by shard.
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

// better prefers the later claim and, for the same claim, the word of its holder.
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

// termProblems finds the shards nobody carries. Without a single answer it stays silent: that nobody answered is
// told already, and who leads is then unknown rather than nobody.
func termProblems(status *gatewayv1.ServiceStatus, sources []Source) []string {
	if status.Service == "gateway" || len(status.Replicas) == 0 {
		return nil
	}
	if len(status.Terms) == 0 {
		return []string{"no replica knows of a shard, so nobody leads"}
	}
	var problems []string
	if vacant := vacantShards(status.Terms); len(vacant) > 0 {
		problems = append(problems, vacant.sentence("has no leader", "have no leader"))
	}
	return append(problems, strayHolders(status.Terms, sources)...)
}

// vacantShards finds shards that nobody holds and shards that are missing below the highest known one.
func vacantShards(terms []*statusv1.Term) spans {
	var vacant spans
	next := int64(0)
	for _, term := range terms {
		shard := int64(term.GetShard())
		if shard > next {
			vacant = vacant.with(next, shard-1)
		}
		if term.GetReplicaId() == "" {
			vacant = vacant.with(shard, shard)
		}
		next = max(next, shard+1)
	}
	return vacant
}

// strayHolders finds holders that are not registered: they ended a moment ago or live in a stale view.
func strayHolders(terms []*statusv1.Term, sources []Source) []string {
	shards := map[string]spans{}
	var strays []string
	for _, term := range terms {
		holder := term.GetReplicaId()
		if holder == "" || isRegistered(sources, holder) {
			continue
		}
		if _, seen := shards[holder]; !seen {
			strays = append(strays, holder)
		}
		shards[holder] = shards[holder].with(int64(term.GetShard()), int64(term.GetShard()))
	}
	var problems []string
	for _, holder := range strays {
		problems = append(problems, fmt.Sprintf("%s by %s, which is not registered", shards[holder].sentence("is held", "are held"), holder))
	}
	return problems
}

func isRegistered(sources []Source, id string) bool {
	return slices.ContainsFunc(sources, func(source Source) bool { return source.Replica.GetId() == id })
}
