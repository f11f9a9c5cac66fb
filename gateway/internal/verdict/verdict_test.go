package verdict_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/verdict"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func answered(id string, change ...func(*statusv1.ReplicaStatus)) verdict.Replica {
	status := &statusv1.ReplicaStatus{Replica: &statusv1.Replica{Id: id, Service: "leasesvc", AdminAddress: id + ":7611"}, Ready: true, ShardCount: 2}
	for _, c := range change {
		c(status)
	}
	return verdict.Replica{ID: id, Status: status}
}

func silent(id string) verdict.Replica {
	return verdict.Replica{ID: id, Failure: "DEADLINE_EXCEEDED: no answer within 1s"}
}

func led(shard int32, leader string) *statusv1.ShardStatus {
	return &statusv1.ShardStatus{Shard: &shard, LeaderId: leader, Epoch: 7}
}

func reports(problems ...*metav1.Problem) func(*statusv1.ReplicaStatus) {
	return func(s *statusv1.ReplicaStatus) { s.Problems = problems }
}

func lacks(dependency string) func(*statusv1.ReplicaStatus) {
	return func(s *statusv1.ReplicaStatus) {
		s.Dependencies = append(s.Dependencies, &statusv1.Dependency{Name: dependency, Message: "connection refused"})
	}
}

func has(dependency string) func(*statusv1.ReplicaStatus) {
	return func(s *statusv1.ReplicaStatus) {
		s.Dependencies = append(s.Dependencies, &statusv1.Dependency{Name: dependency, Healthy: true})
	}
}

func loops(states ...statusv1.Loop_State) func(*statusv1.ReplicaStatus) {
	return func(s *statusv1.ReplicaStatus) {
		for i, state := range states {
			s.Loops = append(s.Loops, &statusv1.Loop{Name: fmt.Sprintf("loop-%d", i), State: state, LastError: "conflict"})
		}
	}
}

func leasesvc(shards []*statusv1.ShardStatus, vacant verdict.Shards, replicas ...verdict.Replica) verdict.Service {
	return verdict.Service{Name: "leasesvc", Sharded: true, Replicas: replicas, Shards: shards, Vacant: vacant}
}

// TestOf_JudgesOneService lists problems as "SEVERITY CODE resource: message".
func TestOf_JudgesOneService(t *testing.T) {
	both := []*statusv1.ShardStatus{led(0, "a"), led(1, "a")}
	for name, test := range map[string]struct {
		service verdict.Service
		state   metav1.Verdict_State
		want    []string
	}{
		"all is well": {
			service: leasesvc(both, nil, answered("a", loops(statusv1.Loop_STATE_RUNNING, statusv1.Loop_STATE_DISABLED), has("etcd")), answered("b", loops(statusv1.Loop_STATE_STANDBY))),
			state:   metav1.Verdict_STATE_OK,
		},
		"no replica is registered": {
			service: leasesvc(nil, nil),
			state:   metav1.Verdict_STATE_FAILED,
			want:    []string{"ERROR NO_REPLICA services/leasesvc: no replica of leasesvc is registered"},
		},
		"a standby does not answer": {
			service: leasesvc(both, nil, answered("a"), silent("b")),
			state:   metav1.Verdict_STATE_WARNING,
			want:    []string{"WARNING REPLICA_UNREACHABLE replicas/b: replica b (a standby) does not answer: DEADLINE_EXCEEDED: no answer within 1s"},
		},
		"a leader does not answer": {
			service: leasesvc(both, nil, silent("a"), answered("b")),
			state:   metav1.Verdict_STATE_UNKNOWN,
			want:    []string{"UNKNOWN REPLICA_UNREACHABLE replicas/a: replica a (shards 0-1 are led by it) does not answer: DEADLINE_EXCEEDED: no answer within 1s"},
		},
		"no replica answers": {
			service: leasesvc(nil, verdict.Shards{}.With(0), silent("a")),
			state:   metav1.Verdict_STATE_UNKNOWN,
			want: []string{
				"UNKNOWN SERVICE_UNKNOWN services/leasesvc: no replica of leasesvc answers",
				"WARNING REPLICA_UNREACHABLE replicas/a: replica a (a standby) does not answer: DEADLINE_EXCEEDED: no answer within 1s",
			},
		},
		"shards without a leader": {
			service: leasesvc([]*statusv1.ShardStatus{led(0, "a")}, verdict.Shards{}.With(1).With(2).With(5), answered("a")),
			state:   metav1.Verdict_STATE_FAILED,
			want:    []string{"ERROR SHARDS_WITHOUT_LEADER services/leasesvc: leasesvc: shards 1-2, 5 have no leader"},
		},
		"the leader is not registered": {
			service: leasesvc([]*statusv1.ShardStatus{led(0, "gone"), led(1, "a")}, nil, answered("a")),
			state:   metav1.Verdict_STATE_WARNING,
			want:    []string{"WARNING LEADER_NOT_REGISTERED replicas/gone: leasesvc: shard 0 is led by gone, which is not registered"},
		},
		"not ready without a reason": {
			service: leasesvc(both, nil, answered("a", func(s *statusv1.ReplicaStatus) { s.Ready = false })),
			state:   metav1.Verdict_STATE_WARNING,
			want:    []string{"WARNING REPLICA_NOT_READY replicas/a: it gives no reason"},
		},
		"loops": {
			service: leasesvc(both, nil, answered("a", loops(statusv1.Loop_STATE_FAILING, statusv1.Loop_STATE_STALLED, statusv1.Loop_STATE_RUNNING))),
			state:   metav1.Verdict_STATE_FAILED,
			want: []string{
				"ERROR LOOP_STALLED replicas/a: loop loop-1 has not finished a pass for longer than it promises",
				"WARNING LOOP_FAILING replicas/a: loop loop-0 failed: conflict",
			},
		},
		"one replica lacks a dependency": {
			service: leasesvc(both, nil, answered("a", has("etcd")), answered("b", lacks("etcd"))),
			state:   metav1.Verdict_STATE_WARNING,
			want:    []string{"WARNING DEPENDENCY_UNREACHABLE replicas/b: etcd is not reachable: connection refused"},
		},
		"every replica that answers lacks a dependency": {
			service: leasesvc(both, nil, answered("a", lacks("kube-apiserver"), has("etcd")), silent("c")),
			state:   metav1.Verdict_STATE_FAILED,
			want: []string{
				"ERROR DEPENDENCY_UNREACHABLE replicas/a: kube-apiserver is not reachable: connection refused",
				"WARNING REPLICA_UNREACHABLE replicas/c: replica c (a standby) does not answer: DEADLINE_EXCEEDED: no answer within 1s",
			},
		},
		"two replicas report one problem": {
			service: leasesvc(both, nil,
				answered("a", reports(&metav1.Problem{Code: "X", Severity: metav1.Problem_SEVERITY_WARNING, Resource: "nodes/n1", Message: "m"})),
				answered("b", reports(&metav1.Problem{Code: "X", Severity: metav1.Problem_SEVERITY_ERROR, Resource: "nodes/n1", Message: "m"})),
			),
			state: metav1.Verdict_STATE_FAILED,
			want:  []string{"ERROR X nodes/n1: m"},
		},
		"a severity of a later version": {
			service: leasesvc(both, nil, answered("a", reports(&metav1.Problem{Code: "X", Severity: 9}))),
			state:   metav1.Verdict_STATE_FAILED,
			want:    []string{"9 X : "},
		},
		"a problem without a severity": {
			service: leasesvc(both, nil, answered("a", reports(&metav1.Problem{Code: "X"}))),
			state:   metav1.Verdict_STATE_UNKNOWN,
			want:    []string{"UNSPECIFIED X : "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := verdict.Of([]verdict.Service{test.service})
			if got.State != test.state {
				t.Errorf("state = %s, want %s", got.State, test.state)
			}
			if diff := cmp.Diff(test.want, lines(got)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			for _, problem := range got.Problems {
				if problem.Service != "leasesvc" {
					t.Errorf("problem %s is about %q, want leasesvc", problem.Code, problem.Service)
				}
			}
		})
	}
}

func lines(v *metav1.Verdict) []string {
	var lines []string
	for _, p := range v.Problems {
		severity := p.Severity.String()
		if len(severity) > len("SEVERITY_") {
			severity = severity[len("SEVERITY_"):]
		}
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", severity, p.Code, p.Resource, p.Message))
	}
	return lines
}

func TestOf_OrdersBySeverityThenService(t *testing.T) {
	warning := &metav1.Problem{Code: "W", Severity: metav1.Problem_SEVERITY_WARNING}
	failure := &metav1.Problem{Code: "E", Severity: metav1.Problem_SEVERITY_ERROR}
	services := []verdict.Service{
		{Name: "leasesvc", Replicas: []verdict.Replica{answered("a", reports(warning))}},
		{Name: "slicesvc", Replicas: []verdict.Replica{answered("s", reports(warning, failure))}},
	}
	got := verdict.Of(services)
	var order []string
	for _, p := range got.Problems {
		order = append(order, p.Service+" "+p.Code)
	}
	if diff := cmp.Diff([]string{"slicesvc E", "leasesvc W", "slicesvc W"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if own := verdict.Of(services[:1]); own.State != metav1.Verdict_STATE_WARNING {
		t.Errorf("state of leasesvc = %s, want WARNING", own.State)
	}
	if warning.Service != "" || failure.Service != "" {
		t.Error("Of changed its input")
	}
}

func TestOf_KeepsTheWorstOfManyProblems(t *testing.T) {
	var many []*metav1.Problem
	for i := range 1000 {
		many = append(many, &metav1.Problem{Code: "W", Severity: metav1.Problem_SEVERITY_WARNING, Resource: fmt.Sprint(i)})
	}
	many = append(many, &metav1.Problem{Code: "E", Severity: metav1.Problem_SEVERITY_ERROR})
	got := verdict.Of([]verdict.Service{{Name: "leasesvc", Replicas: []verdict.Replica{answered("a", reports(many...))}}})
	if len(got.Problems) != 200 || got.Problems[0].Code != "E" {
		t.Errorf("%d problems, first %s; want 200 with E first", len(got.Problems), got.Problems[0].Code)
	}
}

// A replica chooses the link of a problem. One that is no page of documentation is dropped, and the
// replica's own message stays as it was.
func TestOf_ALinkIsHTTPSOrNone(t *testing.T) {
	for link, want := range map[string]string{
		"https://trivet.dev/docs/runbooks/NO_REPLICA": "https://trivet.dev/docs/runbooks/NO_REPLICA",
		"javascript:alert(1)":                         "", "JaVaScRiPt:alert(1)": "", " https://x": "", "data:text/html,x": "", "//evil.example": "", "http://x": "",
		"https://user@evil.example/": "", "https:evil": "", "docs/operations.md": "", "\x00": "",
	} {
		problem := &metav1.Problem{Code: "A", Service: "leasesvc", Severity: metav1.Problem_SEVERITY_WARNING, HelpUrl: link}
		replica := answered("a", func(status *statusv1.ReplicaStatus) { status.Problems = []*metav1.Problem{problem} })
		all := verdict.Of([]verdict.Service{{Name: "leasesvc", Replicas: []verdict.Replica{replica}}}).GetProblems()
		if len(all) != 1 || all[0].GetHelpUrl() != want || problem.GetHelpUrl() != link {
			t.Errorf("link %q: %v, want the link %q", link, all, want)
		}
	}
}
