package allocationcontroller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// Codes of problems; enum ProblemCode of trivet.meta lists them.
const (
	problemFindingsOpen = "FINDINGS_OPEN"
	problemRepairFailed = "REPAIR_FAILED"
	problemAuditFailed  = "AUDIT_FAILED"
)

const (
	// maxProblemNames bounds the names in a message.
	maxProblemNames = 3
	// problemDelay is how long passes may fail before that is a problem: a single failure is
	// repeated soon.
	problemDelay = 10 * time.Second
)

// Problems returns what is wrong with allocations and with the audit, the worst first. It answers
// from memory, and only on the leader.
func (c *Controller) Problems() []*metav1.Problem {
	if problems := c.published.problems.Load(); problems != nil {
		return *problems
	}
	return nil
}

// publishProblems publishes the problems after a pass with this error.
func (r *reconciler) publishProblems(now time.Time, err error) {
	if now.Sub(r.failingSince) < problemDelay {
		err = nil
	}
	r.published.problems.Store(problemsOf(r.published.snapshot.Load(), err, r.repairs.ended))
}

func problemsOf(snapshot *Snapshot, failure error, repairs []endedRepair) *[]*metav1.Problem {
	problems := []*metav1.Problem{}
	if failure != nil {
		problems = append(problems, &metav1.Problem{
			Code: problemAuditFailed, Severity: metav1.Problem_SEVERITY_UNKNOWN,
			Message: "the audit of ClusterIPs and node ports fails: " + failure.Error(),
			Next:    "look at the kube-apiserver and at etcd",
		})
	}
	if snapshot != nil {
		problems = append(problems, storeProblems(snapshot.Stores)...)
		problems = append(problems, findingProblems(snapshot.Current)...)
		problems = append(problems, repairProblems(snapshot.Current, repairs)...)
	}
	slices.SortStableFunc(problems, func(a, b *metav1.Problem) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) })
	return &problems
}

func storeProblems(stores []allocation.StoreState) []*metav1.Problem {
	var problems []*metav1.Problem
	for _, state := range stores {
		if state.Problem != "" {
			problems = append(problems, &metav1.Problem{
				Code: problemAuditFailed, Severity: metav1.Problem_SEVERITY_UNKNOWN,
				Message: fmt.Sprintf("the allocations in %s cannot be compared: %s", state.Store, state.Problem),
			})
		}
	}
	return problems
}

// findingProblems returns one problem for all open findings with the same code. An ignored finding
// is no problem, and neither is a pending one.
func findingProblems(current []allocation.Finding) []*metav1.Problem {
	byCode := map[allocation.Code][]allocation.Finding{}
	for _, finding := range current {
		if finding.IsOpen() {
			byCode[finding.Code] = append(byCode[finding.Code], finding)
		}
	}
	var problems []*metav1.Problem
	for _, code := range slices.Sorted(maps.Keys(byCode)) {
		findings := byCode[code]
		problem := &metav1.Problem{
			Code: problemFindingsOpen, Severity: severityOf(code), Resource: findings[0].Name,
			Message: findings[0].Message, Next: "trivet explain finding " + strings.TrimPrefix(findings[0].Name, "findings/"),
		}
		if len(findings) > 1 {
			problem.Message = fmt.Sprintf("%d findings %s are open: %s", len(findings), code.APIName(), firstNames(findings, subjectOf))
			problem.Next = "trivet findings --code " + code.APIName()
		}
		problems = append(problems, problem)
	}
	return problems
}

// severityOf returns an error for what breaks a user's traffic, now or with the next Service that
// is created, and for what keeps Services from being created.
func severityOf(code allocation.Code) metav1.Problem_Severity {
	switch code {
	case allocation.NotAllocated, allocation.DuplicateOwner, allocation.RangeMismatch, allocation.RangeFull:
		return metav1.Problem_SEVERITY_ERROR
	default:
		return metav1.Problem_SEVERITY_WARNING
	}
}

// repairProblems returns one problem for all findings that are open although a repair of them has
// ended.
func repairProblems(current []allocation.Finding, repairs []endedRepair) []*metav1.Problem {
	open := map[string]allocation.Finding{}
	for _, finding := range current {
		if finding.IsOpen() {
			open[finding.Name] = finding
		}
	}
	failed := map[string]string{}
	for _, repair := range repairs {
		for _, name := range repair.failed {
			if finding, ok := open[name]; ok && !repair.started.Before(finding.FirstSeen) {
				failed[name] = repair.id // the last one
			}
		}
	}
	if len(failed) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(failed))
	message := fmt.Sprintf("the repair of %s has failed", names[0])
	if len(names) > 1 {
		message = fmt.Sprintf("the repairs of %d findings have failed: %s", len(names), firstNames(names, func(name string) string { return name }))
	}
	return []*metav1.Problem{{
		Code: problemRepairFailed, Severity: metav1.Problem_SEVERITY_WARNING, Resource: "repairs/" + failed[names[0]],
		Message: message, Next: "look at the steps of the repair",
	}}
}

func subjectOf(f allocation.Finding) string { return cmp.Or(f.Subject, f.Store.String()) }

func firstNames[T any](items []T, name func(T) string) string {
	var names []string
	for _, item := range items[:min(len(items), maxProblemNames)] {
		names = append(names, name(item))
	}
	text := strings.Join(names, ", ")
	if more := len(items) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
