// Package verdict says whether a cluster is well, from what its replicas report.
//
// It is the only place that decides it: the page, the command line, `/v1/status` and exit codes
// show its [metav1.Verdict]. It has no I/O, no clock and no context, and never changes its inputs.
//
// Rules:
//
//   - A problem that a replica reports counts as reported; one that several report counts once.
//   - A duty that is not carried out is an ERROR: a shard without a leader, a loop that has
//     stalled, a service without a replica.
//   - A duty of which nothing is known is UNKNOWN: a leader that does not answer.
//   - What costs only redundancy is a WARNING: a standby that does not answer or is not ready, a
//     dependency that one of several replicas cannot reach.
package verdict

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// maxProblems bounds a verdict. The worst problems are kept.
const maxProblems = 200

// The codes of the problems that this package finds by itself; the other ones come from replicas.
const (
	NoReplica             = "NO_REPLICA"
	ServiceUnknown        = "SERVICE_UNKNOWN"
	ReplicaUnreachable    = "REPLICA_UNREACHABLE"
	ReplicaNotReady       = "REPLICA_NOT_READY"
	ShardsWithoutLeader   = "SHARDS_WITHOUT_LEADER"
	LeaderNotRegistered   = "LEADER_NOT_REGISTERED"
	LoopFailing           = "LOOP_FAILING"
	LoopStalled           = "LOOP_STALLED"
	DependencyUnreachable = "DEPENDENCY_UNREACHABLE"
)

// Service is what is known of one service.
type Service struct {
	Name string
	// Sharded is whether the service divides its work into shards.
	Sharded bool
	// Replicas are the registered ones, ordered by id.
	Replicas []Replica
	// Shards are the best reports about the shards that are known, ordered by shard.
	Shards []*statusv1.ShardStatus
	// Vacant are the shards that have no leader.
	Vacant Shards
}

// Replica is a registered replica and its answer.
type Replica struct {
	ID string
	// Status is nil if the replica did not answer; Failure then says why.
	Status  *statusv1.ReplicaStatus
	Failure string
}

// Of returns the verdict on services, whose order decides between problems that are equally bad.
func Of(services []Service) *metav1.Verdict {
	var problems []*metav1.Problem
	for _, service := range services {
		problems = append(problems, problemsOf(service)...)
	}
	slices.SortStableFunc(problems, func(a, b *metav1.Problem) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) })
	verdict := &metav1.Verdict{State: metav1.Verdict_STATE_OK, Problems: problems[:min(len(problems), maxProblems)]}
	if len(problems) > 0 {
		verdict.State = stateOf(problems[0].GetSeverity())
	}
	return verdict
}

// stateOf maps a severity of a later version to FAILED: it is not known to be harmless.
func stateOf(severity metav1.Problem_Severity) metav1.Verdict_State {
	switch severity {
	case metav1.Problem_SEVERITY_WARNING:
		return metav1.Verdict_STATE_WARNING
	case metav1.Problem_SEVERITY_UNKNOWN, metav1.Problem_SEVERITY_UNSPECIFIED:
		return metav1.Verdict_STATE_UNKNOWN
	default:
		return metav1.Verdict_STATE_FAILED
	}
}

func problemsOf(service Service) []*metav1.Problem {
	var problems []*metav1.Problem
	add := func(severity metav1.Problem_Severity, code, resource, next, format string, arguments ...any) {
		problems = append(problems, &metav1.Problem{
			Code: code, Severity: severity, Resource: resource, Service: service.Name, Next: next, Message: fmt.Sprintf(format, arguments...),
		})
	}
	if len(service.Replicas) == 0 {
		add(metav1.Problem_SEVERITY_ERROR, NoReplica, "services/"+service.Name, "start it, or check its --cluster and its connection to etcd",
			"no replica of %s is registered", service.Name)
		return problems
	}
	if !service.answered() {
		add(metav1.Problem_SEVERITY_UNKNOWN, ServiceUnknown, "services/"+service.Name, "check certificates and network between gateway and replicas",
			"no replica of %s answers", service.Name)
	}
	if service.answered() && service.Sharded {
		if len(service.Vacant) > 0 {
			add(metav1.Problem_SEVERITY_ERROR, ShardsWithoutLeader, "services/"+service.Name, "see the log of its replicas for the loop that gives them up",
				"%s: %s", service.Name, service.Vacant.Sentence("has no leader", "have no leader"))
		}
		for _, unregistered := range service.unregisteredLeaders() {
			add(metav1.Problem_SEVERITY_WARNING, LeaderNotRegistered, "replicas/"+unregistered.leader, "wait for the end of its term",
				"%s: %s by %s, which is not registered", service.Name, unregistered.shards.Sentence("is led", "are led"), unregistered.leader)
		}
	}
	for _, replica := range service.Replicas {
		if replica.Status != nil {
			problems = append(problems, service.reported(replica)...)
			continue
		}
		severity, role := metav1.Problem_SEVERITY_WARNING, "a standby"
		if led := service.ledBy(replica.ID); len(led) > 0 {
			severity, role = metav1.Problem_SEVERITY_UNKNOWN, led.Sentence("is led by it", "are led by it")
		}
		add(severity, ReplicaUnreachable, "replicas/"+replica.ID, "see its log; check certificates and network",
			"replica %s (%s) does not answer: %s", replica.ID, role, cmp.Or(replica.Failure, "UNKNOWN"))
	}
	return distinct(problems)
}

func (s Service) answered() bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.Status != nil })
}

// reported returns the problems of a replica that answered.
func (s Service) reported(replica Replica) []*metav1.Problem {
	status := replica.Status
	problems := slices.Clone(status.GetProblems())
	resource := "replicas/" + replica.ID
	if !status.GetReady() && !slices.ContainsFunc(problems, func(p *metav1.Problem) bool { return p.GetCode() == ReplicaNotReady }) {
		problems = append(problems, &metav1.Problem{
			Code: ReplicaNotReady, Severity: metav1.Problem_SEVERITY_WARNING, Resource: resource,
			Message: "it gives no reason", Next: "see its log and /readyz?verbose at " + status.GetReplica().GetAdminAddress(),
		})
	}
	for _, loop := range status.GetLoops() {
		switch loop.GetState() {
		case statusv1.Loop_STATE_FAILING:
			problems = append(problems, &metav1.Problem{
				Code: LoopFailing, Severity: metav1.Problem_SEVERITY_WARNING, Resource: resource,
				Message: fmt.Sprintf("loop %s failed: %s", loop.GetName(), loop.GetLastError()), Next: "it tries again; see the log of the replica",
			})
		case statusv1.Loop_STATE_STALLED:
			problems = append(problems, &metav1.Problem{
				Code: LoopStalled, Severity: metav1.Problem_SEVERITY_ERROR, Resource: resource,
				Message: fmt.Sprintf("loop %s has not finished a pass for longer than it promises", loop.GetName()),
				Next:    "see the log of the replica; with --profiling, its /debug/pprof/goroutine shows where it waits",
			})
		}
	}
	for _, dependency := range status.GetDependencies() {
		if dependency.GetHealthy() {
			continue
		}
		severity := metav1.Problem_SEVERITY_WARNING
		if s.allLack(dependency.GetName()) {
			severity = metav1.Problem_SEVERITY_ERROR
		}
		problems = append(problems, &metav1.Problem{
			Code: DependencyUnreachable, Severity: severity, Resource: resource,
			Message: fmt.Sprintf("%s is not reachable: %s", dependency.GetName(), dependency.GetMessage()),
			Next:    "check that it runs, and the network and certificates of the replica",
		})
	}
	for i, problem := range problems {
		if problem.GetService() != s.Name { // a replica speaks for its own service only
			own := &metav1.Problem{
				Code: problem.GetCode(), Severity: problem.GetSeverity(), Resource: problem.GetResource(), Message: problem.GetMessage(),
				Next: problem.GetNext(), HelpUrl: problem.GetHelpUrl(), Service: s.Name,
			}
			problems[i] = own
		}
		if link := problem.GetHelpUrl(); link != "" && !isHelpURL(link) {
			problems[i] = proto.CloneOf(problems[i])
			problems[i].HelpUrl = ""
		}
	}
	return problems
}

// isHelpURL reports whether a page may link to a URL: it is https and names a host. A replica
// chooses it.
func isHelpURL(text string) bool {
	parsed, err := url.Parse(text)
	return err == nil && parsed.Scheme == "https" && parsed.Host != "" && parsed.User == nil
}

// allLack reports whether no replica that answered reaches a dependency.
func (s Service) allLack(dependency string) bool {
	for _, replica := range s.Replicas {
		for _, d := range replica.Status.GetDependencies() {
			if d.GetName() == dependency && d.GetHealthy() {
				return false
			}
		}
	}
	return true
}

// ledBy returns the shards that a replica leads, as far as other replicas know.
func (s Service) ledBy(id string) Shards {
	var led Shards
	for _, shard := range s.Shards {
		if shard.GetLeaderId() == id {
			led = led.With(shard.GetShard())
		}
	}
	return led
}

// unregisteredLeader is a leader that is not registered: it ended a moment ago, or a replica
// reports an old term.
type unregisteredLeader struct {
	leader string
	shards Shards
}

func (s Service) unregisteredLeaders() []unregisteredLeader {
	var leaders []unregisteredLeader
	for _, shard := range s.Shards {
		id := shard.GetLeaderId()
		if id == "" || slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.ID == id }) {
			continue
		}
		i := slices.IndexFunc(leaders, func(u unregisteredLeader) bool { return u.leader == id })
		if i < 0 {
			i, leaders = len(leaders), append(leaders, unregisteredLeader{leader: id})
		}
		leaders[i].shards = leaders[i].shards.With(shard.GetShard())
	}
	return leaders
}

// distinct keeps the worst of the problems that say the same. Several replicas may see one object.
func distinct(problems []*metav1.Problem) []*metav1.Problem {
	type key struct{ code, resource, message string }
	places := map[key]int{}
	var kept []*metav1.Problem
	for _, problem := range problems {
		k := key{problem.GetCode(), problem.GetResource(), problem.GetMessage()}
		if i, known := places[k]; known {
			if problem.GetSeverity() > kept[i].GetSeverity() {
				kept[i] = problem
			}
			continue
		}
		places[k] = len(kept)
		kept = append(kept, problem)
	}
	return kept
}

// Shards is an ascending list of shard ranges, both ends included.
type Shards [][2]int32

// With appends a shard that comes after all others. It extends the last range if they touch.
func (r Shards) With(shard int32) Shards {
	if n := len(r); n > 0 && r[n-1][1]+1 == shard {
		r[n-1][1] = shard
		return r
	}
	return append(r, [2]int32{shard, shard})
}

// Sentence names the shards, followed by one of the two predicates.
func (r Shards) Sentence(one, many string) string {
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
