package bootstrapsvc

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// Codes of problems; enum ProblemCode of trivet.meta lists them.
const (
	problemNoServerReady     = "NO_APISERVER_READY"
	problemEndpointsEmpty    = "ENDPOINTS_EMPTY"
	problemEndpointsStale    = "ENDPOINTS_STALE"
	problemNotReconciled     = "BASELINE_NOT_RECONCILED"
	problemBaselineCondition = "BASELINE_CONDITION"
)

const (
	// failureDelay is how long passes may fail before that is a problem: a single failure is
	// repeated soon.
	failureDelay = 10 * time.Second
	maxProblems  = 50
)

// Problems returns what is wrong with the duties of the service, the worst first. It answers from
// memory. Only the leader knows problems.
func (s *Service) Problems() []*metav1.Problem {
	var problems []*metav1.Problem
	for _, reconciler := range s.reconcilers() {
		if state := reconciler.State(); state != nil {
			problems = append(problems, baselineProblems(reconciler.Loop, state, time.Now())...)
		}
	}
	if state := s.apiservers.Reconciler().State(); state != nil && s.apiservers.Policy.Kind != apiservers.Untouched {
		problems = append(problems, emptyEndpoints(state)...)
	}
	problems = append(problems, s.allocation.Problems()...)
	slices.SortStableFunc(problems, func(a, b *metav1.Problem) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) })
	return problems[:min(len(problems), maxProblems)]
}

// baselineProblems returns one problem for a loop that fails, and one for each reason of reports.
func baselineProblems(loop string, state *baselinecontroller.State, now time.Time) []*metav1.Problem {
	var problems []*metav1.Problem
	if state.Err != nil && now.Sub(state.FailingSince) >= failureDelay {
		problem := &metav1.Problem{
			Code: problemNotReconciled, Severity: metav1.Problem_SEVERITY_WARNING, Resource: "baseline",
			Message: fmt.Sprintf("loop %s has failed since %s: %s", loop, state.FailingSince.UTC().Format(time.RFC3339), wording.Valid(state.Err.Error())),
			Next:    "look at etcd and at the kube-apiserver",
		}
		if loop == apiserverscontroller.EndpointsLoop {
			problem.Code, problem.Severity = problemEndpointsStale, metav1.Problem_SEVERITY_ERROR
		}
		problems = append(problems, problem)
	}
	byReason := map[baseline.Reason]*metav1.Problem{}
	counts := map[baseline.Reason]int{}
	for _, report := range state.Reports {
		if counts[report.Reason]++; counts[report.Reason] == 1 {
			byReason[report.Reason] = problemOf(report)
			problems = append(problems, byReason[report.Reason])
		}
	}
	for reason, count := range counts {
		if count > 1 {
			byReason[reason].Message += fmt.Sprintf(" (and %d more)", count-1)
		}
	}
	return problems
}

func problemOf(report baseline.Change) *metav1.Problem {
	problem := &metav1.Problem{
		Code: problemBaselineCondition, Severity: metav1.Problem_SEVERITY_WARNING, Resource: "baseline", Message: wording.Valid(report.Detail),
	}
	if condition, ok := api.ConditionTypeOf(report.Reason); ok {
		problem.Next = fmt.Sprintf("see the condition %s (%s) of the baseline", condition, report.Reason)
	}
	switch report.Reason {
	case apiservers.NoServerReady, apiservers.NoServerReports, apiservers.StaticUnresolved:
		problem.Code, problem.Severity = problemNoServerReady, metav1.Problem_SEVERITY_ERROR
		problem.Next = "trivet apiservers"
	}
	return problem
}

func emptyEndpoints(state *baselinecontroller.State) []*metav1.Problem {
	if published, known := state.Counts["endpoint_addresses"]; !known || published > 0 {
		return nil
	}
	return []*metav1.Problem{{
		Code: problemEndpointsEmpty, Severity: metav1.Problem_SEVERITY_ERROR, Resource: "baseline",
		Message: "the Service default/kubernetes has no endpoint", Next: "trivet apiservers",
	}}
}
