package allocationcontroller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// unfinishedRepair is a repair with pending steps, or with results that are not stored yet.
type unfinishedRepair struct {
	repairstore.Repair
	// retries has the errors of the findings whose next step could not be written yet.
	retries map[string]error
	// unsaved are the numbers of the steps whose results the store does not have.
	unsaved           map[int]struct{}
	isProgressUnsaved bool
	// progressSaved is when the progress was last stored.
	progressSaved time.Time
	// running is how many workers apply steps of it.
	running int
	// waiters are the callers that wait for the repair.
	waiters []*repairWaiter
}

// repairWaiter waits until a repair has ended, or every finding with pending steps was tried.
type repairWaiter struct {
	untried set
	// idle reports that it waits only until no worker applies a step of the repair.
	idle bool
	// reply holds one result, so that the goroutine of Run never waits for the caller.
	reply chan repairResult
}

type repairResult struct {
	repair repairstore.Repair
	err    error
}

// newUnfinishedRepair returns a stored repair. It was taken up when it was begun, even if the store
// does not say so.
func newUnfinishedRepair(repair repairstore.Repair) *unfinishedRepair {
	repair.Progress.Attempts = max(repair.Progress.Attempts, 1)
	return &unfinishedRepair{Repair: repair, retries: map[string]error{}, unsaved: map[int]struct{}{}}
}

// merge takes over what the store has of the repair. A result that is known and not stored stays.
func (u *unfinishedRepair) merge(stored repairstore.Repair) {
	for number := range u.unsaved {
		if stored.Results[number].State == repairstore.StepPending {
			stored.Results[number] = u.Results[number]
		} else {
			delete(u.unsaved, number)
		}
	}
	stored.Progress = u.Progress
	u.Repair, u.isProgressUnsaved = stored, true
}

// tried counts an attempt of a step. err says why it is still pending, nil if it is not.
func (u *unfinishedRepair) tried(number int, err error) {
	steps := maps.Clone(u.Progress.Steps) // a caller may have the old one
	if steps == nil {
		steps = map[int]repairstore.StepProgress{}
	}
	progress := repairstore.StepProgress{Attempts: steps[number].Attempts + 1}
	if err != nil {
		progress.Error = wording.Clip(err.Error(), maxError)
	}
	steps[number] = progress
	u.Progress.Steps, u.isProgressUnsaved = steps, true
	u.Progress.Attempts = max(u.Progress.Attempts, progress.Attempts)
}

func (u *unfinishedRepair) setResult(number int, result repairstore.StepResult) {
	u.Results = slices.Clone(u.Results) // a caller may have the old one
	u.Results[number] = result
	u.unsaved[number] = struct{}{}
}

func (u *unfinishedRepair) hasUnsaved() bool { return len(u.unsaved) > 0 || u.isProgressUnsaved }

// progressInterval is the least time between two writes of a progress that no result accompanies.
// Otherwise each attempt of a step that is refused would write those of all other steps again.
const progressInterval = 5 * time.Second

// mustSave reports whether the store should be told now.
func (u *unfinishedRepair) mustSave(now time.Time) bool {
	return len(u.unsaved) > 0 || u.isProgressUnsaved && (len(u.waiters) > 0 || now.Sub(u.progressSaved) >= progressInterval)
}

// maxError bounds the text of a stored error: all of a repair must fit into one transaction.
const maxError = 512

func (u *unfinishedRepair) unsavedResults() map[int]repairstore.StepResult {
	results := map[int]repairstore.StepResult{}
	for number := range u.unsaved {
		results[number] = u.Results[number]
	}
	return results
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

// pendingStepsOf returns the numbers of the pending steps of a finding, in their order.
func (u *unfinishedRepair) pendingStepsOf(finding string) []int {
	var numbers []int
	for number, step := range u.Steps {
		if step.Finding == finding && u.Results[number].State == repairstore.StepPending {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// priorityOf returns the priority of the next step of a finding.
func (u *unfinishedRepair) priorityOf(finding string) int {
	numbers := u.pendingStepsOf(finding)
	if len(numbers) == 0 || u.isHalfReplaced(finding) {
		return firstPriority
	}
	return u.Steps[numbers[0]].Priority()
}

// isHalfReplaced reports whether an address was deleted to replace it and is not created yet.
func (u *unfinishedRepair) isHalfReplaced(finding string) bool {
	for number, step := range u.Steps {
		if step.Finding == finding && u.isFreeInBetween(number) {
			return true
		}
	}
	return false
}

// isFreeInBetween reports whether a step must create an address that the step before has deleted.
func (u *unfinishedRepair) isFreeInBetween(number int) bool {
	step := u.Steps[number]
	if step.Verb != planned.Create || step.Reason != allocation.ReasonReference ||
		u.Results[number].State != repairstore.StepPending || number == 0 {
		return false
	}
	state := u.Results[number-1].State
	return state == repairstore.StepDone || state == repairstore.StepUnneeded
}

// countHalfReplaced returns for how many findings isHalfReplaced holds.
func (u *unfinishedRepair) countHalfReplaced() (n int) {
	for number := range u.Steps {
		if u.isFreeInBetween(number) {
			n++
		}
	}
	return n
}

// skipSteps skips the pending steps of findings with a failed step and of ignored findings. A
// person's repair goes on unless the finding was ignored after it began, and a replacement is
// completed.
func (u *unfinishedRepair) skipSteps(ignoreOf func(finding string) *allocation.Ignore) {
	failed := set{}
	for number, step := range u.Steps {
		switch state := u.Results[number].State; {
		case state == repairstore.StepFailed:
			failed[step.Finding] = struct{}{}
		case state != repairstore.StepPending:
		case failed.has(step.Finding):
			u.setResult(number, skippedStep("an earlier step of the same finding was not made"))
		default:
			ignore := ignoreOf(step.Finding)
			if ignore != nil && u.running == 0 && !u.isHalfReplaced(step.Finding) &&
				(u.Requester.IsAutomatic() || ignore.Created.After(u.Started)) {
				u.setResult(number, skippedStep("the finding is ignored"))
			}
		}
	}
}

// wait returns the result of the repair once it has ended, or every pending finding was tried.
func (u *unfinishedRepair) wait() <-chan repairResult {
	waiter := &repairWaiter{untried: u.pendingFindings(), reply: make(chan repairResult, 1)}
	u.waiters = append(u.waiters, waiter)
	return waiter.reply
}

// waitIdle returns what is answered once no worker applies a step of the repair.
func (u *unfinishedRepair) waitIdle() <-chan repairResult {
	waiter := &repairWaiter{idle: true, reply: make(chan repairResult, 1)}
	u.waiters = append(u.waiters, waiter)
	return waiter.reply
}

func (u *unfinishedRepair) wasTried(finding string) {
	for _, waiter := range u.waiters {
		delete(waiter.untried, finding)
	}
}

// answer answers the waiters that need not wait any longer.
func (u *unfinishedRepair) answer(err error) {
	u.waiters = slices.DeleteFunc(u.waiters, func(waiter *repairWaiter) bool {
		if err == nil && u.Ended.IsZero() && (len(waiter.untried) > 0 || waiter.idle && u.running > 0) {
			return false
		}
		waiter.reply <- repairResult{u.Repair, err}
		return true
	})
}

func (u *unfinishedRepair) abort() {
	u.answer(cmp.Or(u.retryErr(), errAborted))
}

func (u *unfinishedRepair) retryErr() error { return joinErrors(u.retries) }

const (
	// startBackoffMin and startBackoffMax bound the pause between two automatic repairs of one
	// finding. A repaired finding stays current until the watch has seen the repair, and a finding
	// that cannot be repaired must not be tried in a loop.
	startBackoffMin, startBackoffMax = time.Second, time.Minute
	// retryBackoffMin and retryBackoffMax bound the pause after a step that could not be written.
	retryBackoffMin, retryBackoffMax = time.Second, kubeconn.MaxOutagePause
	// refusedBackoffMax bounds the pause after a step that was refused.
	refusedBackoffMax = 2 * time.Minute
	// rejectedBackoffMin and rejectedBackoffMax bound the pause after a live read that contradicted
	// a finding.
	rejectedBackoffMin, rejectedBackoffMax = 250 * time.Millisecond, 2 * time.Second
)

// repairBackoff says when the controller may try a finding again. Each finding has its own, so that
// one whose repair fails does not delay another.
type repairBackoff struct {
	starts, retries, refusals, rejections workqueue.TypedRateLimiter[string]
	// notBefore has the findings that must wait. failing are those whose last attempt failed.
	notBefore map[string]time.Time
	failing   set
}

func newRepairBackoff() *repairBackoff {
	exponential := workqueue.NewTypedItemExponentialFailureRateLimiter[string]
	return &repairBackoff{
		starts: exponential(startBackoffMin, startBackoffMax), retries: exponential(retryBackoffMin, retryBackoffMax),
		refusals:   exponential(retryBackoffMin, refusedBackoffMax),
		rejections: exponential(rejectedBackoffMin, rejectedBackoffMax),
		notBefore:  map[string]time.Time{}, failing: set{},
	}
}

func (b *repairBackoff) hasFailed(finding string) bool { return b.failing.has(finding) }

// started records that an automatic repair of a finding was begun, or found to be unneeded.
func (b *repairBackoff) started(finding string, now time.Time) {
	b.notBefore[finding] = now.Add(b.starts.When(finding))
}

// failed records an attempt that may succeed later.
func (b *repairBackoff) failed(finding string, now time.Time) {
	b.notBefore[finding] = now.Add(b.retries.When(finding))
	b.failing[finding] = struct{}{}
}

// refused records an attempt that was refused, and that will often be refused again.
func (b *repairBackoff) refused(finding string, now time.Time) {
	b.notBefore[finding] = now.Add(b.refusals.When(finding))
	b.failing[finding] = struct{}{}
}

// rejected records a live read that contradicted a finding.
func (b *repairBackoff) rejected(finding string, now time.Time) {
	b.notBefore[finding] = now.Add(b.rejections.When(finding))
}

// halfReplaced records that an address that was deleted to replace it could not be created. It is
// free although it is in use, so the pause does not grow.
func (b *repairBackoff) halfReplaced(finding string, now time.Time) {
	b.notBefore[finding] = now.Add(createPauseMax)
	b.failing[finding] = struct{}{}
}

func (b *repairBackoff) succeeded(finding string) {
	b.retries.Forget(finding)
	b.refusals.Forget(finding)
	delete(b.failing, finding)
}

// prune forgets the findings that need no repair any more.
func (b *repairBackoff) prune(needed func(finding string) bool) {
	for finding := range b.notBefore {
		if !needed(finding) {
			delete(b.notBefore, finding)
			delete(b.failing, finding)
			for _, limiter := range []workqueue.TypedRateLimiter[string]{b.starts, b.retries, b.refusals, b.rejections} {
				limiter.Forget(finding)
			}
		}
	}
}
