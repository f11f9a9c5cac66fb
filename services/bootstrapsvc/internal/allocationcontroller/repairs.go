package allocationcontroller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// maxHistorySteps bounds the steps of all stored repairs, so that a list of them fits into one
	// message.
	maxHistorySteps = 5000
	// startBackoffMin and startBackoffMax bound the pause between two automatic repairs of one
	// finding. A repaired finding stays current until the watch has seen the repair, and a finding
	// that cannot be repaired must not be tried in a loop.
	startBackoffMin, startBackoffMax = time.Second, time.Minute
	// retryBackoffMin and retryBackoffMax bound the pause after a step that could not be written.
	retryBackoffMin, retryBackoffMax = time.Second, 20 * time.Second
)

// repairs are the stored repairs as far as the controller needs them.
type repairs struct {
	historyLimit int
	backoff      *repairBackoff
	// unfinished are the repairs with pending steps, the oldest first.
	unfinished []*unfinishedRepair
	// ended are the ended repairs, the oldest first.
	ended []endedRepair
	// outdated reports that the store may have more than is known here.
	outdated bool
	// startErrs has the errors of the findings whose automatic repair could not be started.
	startErrs map[string]error
	// failuresLeft is how many batches may still fail in this pass.
	failuresLeft int
	// pausedUntil is when the next repair may run after a pass with maxFailures failures.
	pausedUntil time.Time
}

type endedRepair struct {
	id      string
	steps   int
	started time.Time
	// failed are the findings with a step that failed.
	failed []string
}

func newEndedRepair(repair repairstore.Repair) endedRepair {
	ended := endedRepair{id: repair.ID, steps: len(repair.Steps), started: repair.Started}
	for number, result := range repair.Results {
		if result.State == repairstore.StepFailed {
			ended.failed = append(ended.failed, repair.Steps[number].Finding)
		}
	}
	return ended
}

func newRepairs(historyLimit int) *repairs {
	return &repairs{historyLimit: historyLimit, backoff: newRepairBackoff(), startErrs: map[string]error{}}
}

// restore replaces the known repairs by those of the store, the newest first.
func (rs *repairs) restore(stored []repairstore.Repair) {
	rs.ended, rs.unfinished, rs.outdated = nil, nil, false
	for _, repair := range slices.Backward(stored) {
		if repair.Ended.IsZero() {
			rs.unfinished = append(rs.unfinished, newUnfinishedRepair(repair))
			continue
		}
		rs.ended = append(rs.ended, newEndedRepair(repair))
	}
}

func (rs *repairs) find(id string) *unfinishedRepair {
	for _, repair := range rs.unfinished {
		if repair.ID == id {
			return repair
		}
	}
	return nil
}

// overlapping returns an unfinished repair with a pending step of one of the findings, nil if there
// is none.
func (rs *repairs) overlapping(findings []string) *unfinishedRepair {
	for _, repair := range rs.unfinished {
		if pending := repair.pendingFindings(); slices.ContainsFunc(findings, pending.has) {
			return repair
		}
	}
	return nil
}

func (rs *repairs) pendingFindings() set {
	pending := set{}
	for _, repair := range rs.unfinished {
		maps.Copy(pending, repair.pendingFindings())
	}
	return pending
}

// prune forgets the backoff and the errors of findings that need no repair any more.
func (rs *repairs) prune(needed func(finding string) bool) {
	rs.backoff.prune(needed)
	maps.DeleteFunc(rs.startErrs, func(finding string, _ error) bool { return !needed(finding) })
}

func (rs *repairs) retryErr() error {
	errs := []error{joinErrors(rs.startErrs)}
	for _, repair := range rs.unfinished {
		if err := repair.retryErr(); err != nil {
			errs = append(errs, fmt.Errorf("repair %s is not finished, it will be continued: %w", repair.ID, err))
		}
	}
	return errors.Join(errs...)
}

// idle reports whether no repair is unfinished and none could not be started.
func (rs *repairs) idle() bool { return len(rs.unfinished) == 0 && len(rs.startErrs) == 0 }

func (rs *repairs) moveToEnded(repair *unfinishedRepair) {
	rs.unfinished = slices.DeleteFunc(rs.unfinished, func(other *unfinishedRepair) bool { return other == repair })
	rs.ended = append(rs.ended, newEndedRepair(repair.Repair))
}

// excess returns the IDs of the oldest ended repairs beyond the limits of the history.
func (rs *repairs) excess() []string {
	steps := 0
	for at, repair := range slices.Backward(rs.ended) {
		steps += repair.steps
		if len(rs.ended)-at <= rs.historyLimit && steps <= maxHistorySteps {
			continue
		}
		var ids []string
		for _, old := range rs.ended[:at+1] {
			ids = append(ids, old.id)
		}
		return ids
	}
	return nil
}

// unfinishedRepair is a repair with pending steps.
type unfinishedRepair struct {
	repairstore.Repair
	// retries has the errors of the findings whose next step could not be written yet.
	retries map[string]error
	// unsaved reports that the store does not have the progress.
	unsaved bool
}

// newUnfinishedRepair returns a stored repair. It was taken up when it was begun, even if the store
// does not say so.
func newUnfinishedRepair(repair repairstore.Repair) *unfinishedRepair {
	repair.Progress.Attempts = max(repair.Progress.Attempts, 1)
	return &unfinishedRepair{Repair: repair, retries: map[string]error{}}
}

// tried counts an attempt of a step. err says why it is still pending, nil if it is not.
func (u *unfinishedRepair) tried(number int, err error) {
	steps := maps.Clone(u.Progress.Steps) // a caller may have the old one
	if steps == nil {
		steps = map[int]repairstore.StepProgress{}
	}
	progress := repairstore.StepProgress{Attempts: steps[number].Attempts + 1}
	if err != nil {
		progress.Error = err.Error()
	}
	steps[number] = progress
	u.Progress.Steps, u.unsaved = steps, true
}

func (u *unfinishedRepair) pendingFindings() set {
	pending := set{}
	for number, result := range u.Results {
		if result.State == repairstore.StepPending {
			pending[u.Steps[number].Finding] = struct{}{}
		}
	}
	return pending
}

func (u *unfinishedRepair) nextStep() allocation.Step {
	for number, result := range u.Results {
		if result.State == repairstore.StepPending {
			return u.Steps[number]
		}
	}
	return allocation.Step{}
}

// nextBatch returns the numbers of the next pending steps of ready findings that share their live
// reads, in the order of the plan.
func (u *unfinishedRepair) nextBatch(ready func(finding string) bool) []int {
	var numbers []int
	var steps []allocation.Step
	for number, result := range u.Results {
		if result.State == repairstore.StepPending && ready(u.Steps[number].Finding) {
			numbers, steps = append(numbers, number), append(steps, u.Steps[number])
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return numbers[:batchLength(steps)]
}

// stepsToSkip returns results for the pending steps of findings with a failed step, and in an
// automatic repair for those of ignored findings.
func (u *unfinishedRepair) stepsToSkip(ignored func(finding string) bool) map[int]repairstore.StepResult {
	failed, results := set{}, map[int]repairstore.StepResult{}
	for number, step := range u.Steps {
		switch state := u.Results[number].State; {
		case state == repairstore.StepFailed:
			failed[step.Finding] = struct{}{}
		case state == repairstore.StepPending && failed.has(step.Finding):
			results[number] = skippedStep("an earlier step of the same finding was not made")
		case state == repairstore.StepPending && u.Requester.IsAutomatic() && ignored(step.Finding):
			results[number] = skippedStep("the finding is ignored")
		}
	}
	return results
}

func (u *unfinishedRepair) retryErr() error { return joinErrors(u.retries) }

func joinErrors(errs map[string]error) error {
	var joined []error
	for _, finding := range slices.Sorted(maps.Keys(errs)) {
		joined = append(joined, errs[finding])
	}
	return errors.Join(joined...)
}

// repairBackoff says when the controller may try to repair a finding again. Each finding has its
// own, so that one whose repair fails does not delay another.
type repairBackoff struct {
	starts, retries workqueue.TypedRateLimiter[string]
	// notBefore has the findings that must wait.
	notBefore map[string]time.Time
}

func newRepairBackoff() *repairBackoff {
	return &repairBackoff{
		starts:    workqueue.NewTypedItemExponentialFailureRateLimiter[string](startBackoffMin, startBackoffMax),
		retries:   workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryBackoffMin, retryBackoffMax),
		notBefore: map[string]time.Time{},
	}
}

func (b *repairBackoff) ready(finding string, now time.Time) bool {
	return !now.Before(b.notBefore[finding])
}

func (b *repairBackoff) started(finding string, now time.Time) {
	b.notBefore[finding] = now.Add(b.starts.When(finding))
}

func (b *repairBackoff) failed(finding string, now time.Time) {
	b.notBefore[finding] = now.Add(b.retries.When(finding))
}

func (b *repairBackoff) succeeded(finding string) { b.retries.Forget(finding) }

// prune forgets the findings that need no repair any more.
func (b *repairBackoff) prune(needed func(finding string) bool) {
	for finding := range b.notBefore {
		if !needed(finding) {
			delete(b.notBefore, finding)
			b.starts.Forget(finding)
			b.retries.Forget(finding)
		}
	}
}
