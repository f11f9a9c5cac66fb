package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// workTimeout bounds the work on one finding, so that a call that hangs frees its worker.
	workTimeout = 10 * time.Second
	// maxAttempts is how often a step is tried at once after a write conflict. maxSetAttempts
	// applies to steps that set bits, which need no list of all Services: kube-apiserver writes a
	// bitmap up to hundreds of times per second.
	maxAttempts, maxSetAttempts = 5, 50
	// maxConflictPause bounds the random pause after a write conflict.
	maxConflictPause = 5 * time.Millisecond
)

var (
	// errCancelling is the error of a step that was not tried, because a caller wants to cancel the
	// repair.
	errCancelling = errors.New("the repair is being cancelled")
	// errWaiting is the error of a step that was not tried, because not every watch has listed its
	// objects yet.
	errWaiting = errors.New("the step waits until everything has been read")
)

// worker reads and writes what the steps of one finding need, or those of several findings that
// write one bitmap. It has no state of its own, so any number of goroutines use one at a time.
type worker struct {
	Deps
	// term is the context of the term. What must follow a write at once does not end with the time
	// limit of the work.
	term     context.Context
	services *serviceLists
	// awaitRevision waits until the index has a range at a revision, and returns which of the
	// findings are open then. A bit does not show its history: if it was cleared and set again in
	// between, it belongs to a Service that no list may show yet.
	awaitRevision func(ctx context.Context, store allocation.Store, revision int64, findings []string) (set, error)
	// settings are those of the index.
	settings allocation.Settings
	// unverified says why the ranges may belong to another cluster, empty if they do not.
	unverified string
	// stop reports whether no further step may be started.
	stop func() bool
	// completeOnly restricts the work to the second half of a replacement.
	completeOnly bool
}

// outcome is what came of one step. A pending result has an error, unless the step was not tried.
type outcome struct {
	repairstore.StepResult
	err error
	// untried reports that the step was not tried.
	untried bool
}

func pendingOutcome(err error) outcome { return outcome{err: err} }

func finishedOutcome(result repairstore.StepResult) outcome { return outcome{StepResult: result} }

// confirm reports whether a finding is so now: whether its steps could be applied or, without
// steps, whether a comparison of live objects has it too. It reads the Services last: a Service
// that used the subject all the time, as the index saw, and still does, has lost it.
func (w *worker) confirm(ctx context.Context, finding allocation.Finding) (bool, error) {
	if len(finding.Steps) == 0 {
		live, err := w.readObjects(ctx, finding)
		return err == nil && w.settings.Reproduces(finding, live), err
	}
	live := liveState{}
	if err := w.readTarget(ctx, finding.Steps[0], &live); err != nil {
		return false, err
	}
	if err := w.readUsers(ctx, finding.Steps, &live); err != nil {
		return false, err
	}
	return allocation.CheckFinding(finding, live.toLiveState()), nil
}

// readObjects reads what a finding without steps was concluded from.
func (w *worker) readObjects(ctx context.Context, finding allocation.Finding) (live allocation.LiveObjects, err error) {
	if finding.Store == allocation.IPAddresses {
		if finding.Subject != "" {
			if live.IPAddress, err = w.Cluster.IPAddress(ctx, finding.Subject); err != nil {
				return live, err
			}
		}
		if live.CIDRs, err = w.Cluster.ServiceCIDRs(ctx); err != nil {
			return live, err
		}
	}
	for _, store := range w.settings.Stores {
		if !finding.Store.IsBitmap() || !store.IsBitmap() || (store == allocation.NodePorts) != (finding.Store == allocation.NodePorts) {
			continue
		}
		value, err := w.Ranges.Read(ctx, RangeName(store))
		if err != nil {
			return live, err
		}
		live.Bitmaps = append(live.Bitmaps, bitmapOf(store, value, w.unverified))
	}
	live.Usage, err = w.services.read(ctx)
	return live, err
}

// apply applies the steps of one finding in their order, or the bits of several findings.
func (w *worker) apply(ctx context.Context, steps []allocation.Step) []outcome {
	switch {
	case steps[0].Store.IsBitmap():
		return w.applyBits(ctx, steps)
	case len(steps) == 2 && steps[0].Verb == planned.Delete && steps[1].Verb == planned.Create:
		return w.replace(ctx, steps[0], steps[1])
	}
	outcomes := untriedOutcomes(steps)
	for i, step := range steps {
		if w.stop() {
			break
		}
		if outcomes[i] = w.applyAddress(ctx, step); outcomes[i].State != repairstore.StepDone && outcomes[i].State != repairstore.StepUnneeded {
			break
		}
	}
	return outcomes
}

func untriedOutcomes(steps []allocation.Step) []outcome {
	outcomes := make([]outcome, len(steps))
	for i := range outcomes {
		outcomes[i] = outcome{err: errCancelling, untried: true}
	}
	return outcomes
}

// applyAddress applies a step about an IPAddress.
func (w *worker) applyAddress(ctx context.Context, step allocation.Step) outcome {
	for attempt := 1; ; attempt++ {
		live, err := w.readAddress(ctx, step)
		if err != nil {
			return pendingOutcome(err)
		}
		if result := checkStep(step, live); result.State != repairstore.StepPending {
			return finishedOutcome(result)
		}
		err = w.write(ctx, step, live.address)
		if err == nil {
			return finishedOutcome(doneStep())
		}
		if !errors.Is(err, guarded.ErrConflict) || attempt == maxAttempts {
			return pendingOutcome(err)
		}
	}
}

// write makes the write of a step over the object that was read.
func (w *worker) write(ctx context.Context, step allocation.Step, over *allocation.IPAddress) error {
	switch step.Verb {
	case planned.Create:
		return w.Cluster.Create(ctx, step.Object)
	case planned.Relabel:
		return w.Cluster.Relabel(ctx, step.Object, allocation.Guard{UID: over.UID, ResourceVersion: over.ResourceVersion})
	case planned.Delete:
		return w.Cluster.Delete(ctx, step.Object.Name, allocation.Guard{UID: over.UID, ResourceVersion: over.ResourceVersion})
	default:
		return fmt.Errorf("verb %s does not apply to an IPAddress", step.Verb)
	}
}

// applyBits writes the bits of all steps at once: all are set, or all are cleared.
func (w *worker) applyBits(ctx context.Context, steps []allocation.Step) []outcome {
	outcomes := untriedOutcomes(steps)
	setPending := func(to outcome) []outcome {
		for i := range outcomes {
			if outcomes[i].untried {
				outcomes[i] = to
			}
		}
		return outcomes
	}
	attempts := maxAttempts
	if !steps[0].Frees() {
		attempts = maxSetAttempts
	}
	for attempt := 1; ; attempt++ {
		live, open, err := w.readBits(ctx, steps)
		if err != nil {
			return setPending(pendingOutcome(err))
		}
		var pending []allocation.Step
		for i, step := range steps {
			outcomes[i] = outcome{StepResult: checkStep(step, live), untried: true}
			switch {
			case outcomes[i].State != repairstore.StepPending:
				outcomes[i].untried = false
			case step.Frees() && !open.has(step.Finding):
				outcomes[i] = finishedOutcome(failedStep(fmt.Errorf(
					"%s has not been watched unused for long enough in this term; it is planned again after its grace period", step.Subject)))
			default:
				pending = append(pending, step)
			}
		}
		if len(pending) == 0 {
			return outcomes
		}
		data, err := live.bitmap.Write(pending)
		if err != nil {
			return setPending(finishedOutcome(failedStep(err)))
		}
		_, err = w.Ranges.CompareAndSwap(ctx, RangeName(steps[0].Store), live.value.ModRevision, live.value.Range.With(data))
		switch {
		case err == nil:
			return setPending(finishedOutcome(doneStep()))
		case errors.Is(err, rangestore.ErrConflict) && attempt < attempts:
			time.Sleep(rand.N(maxConflictPause))
		default:
			return setPending(pendingOutcome(err))
		}
	}
}

// liveState is what was read for steps that share a target.
type liveState struct {
	bitmap  allocation.Bitmap
	value   rangestore.Value
	address *allocation.IPAddress
	usage   *allocation.Usage
}

func (l *liveState) toLiveState() allocation.LiveState {
	return allocation.LiveState{Usage: l.usage, IPAddress: l.address, Bitmap: l.bitmap}
}

// readAddress reads the IPAddress of a step and then the Services. A Service that begins to use the
// address after the list has allocated it before, and the guard of the write detects that.
func (w *worker) readAddress(ctx context.Context, step allocation.Step) (*liveState, error) {
	live := &liveState{}
	if err := w.readTarget(ctx, step, live); err != nil {
		return nil, err
	}
	if live.address != nil && step.Verb == planned.Delete && w.completeOnly {
		return nil, errWaiting
	}
	return live, w.readUsers(ctx, []allocation.Step{step}, live)
}

// readBits reads what steps about bits of one range depend on, and returns which findings are open.
// For steps that set bits, which takes nothing away, the bitmap is read last: kube-apiserver writes
// it with every Service that has ports, and a read in between would lose the race.
func (w *worker) readBits(ctx context.Context, steps []allocation.Step) (live *liveState, open set, err error) {
	live = &liveState{}
	if !steps[0].Frees() {
		if err := w.readUsers(ctx, steps, live); err != nil {
			return nil, nil, err
		}
		return live, nil, w.readTarget(ctx, steps[0], live)
	}
	if err := w.readTarget(ctx, steps[0], live); err != nil {
		return nil, nil, err
	}
	var findings []string
	for _, step := range steps {
		findings = append(findings, step.Finding)
	}
	if open, err = w.awaitRevision(ctx, steps[0].Store, live.value.ModRevision, findings); err != nil {
		return nil, nil, err
	}
	return live, open, w.readUsers(ctx, steps, live)
}

func (w *worker) readTarget(ctx context.Context, step allocation.Step, live *liveState) (err error) {
	if !step.Store.IsBitmap() {
		live.address, err = w.Cluster.IPAddress(ctx, step.Object.Name)
		return err
	}
	if live.value, err = w.Ranges.Read(ctx, RangeName(step.Store)); err != nil {
		return err
	}
	live.bitmap = bitmapOf(step.Store, live.value, w.unverified)
	return nil
}

// maxListDelay bounds how long an address that is in use and free waits for a list of all Services.
const maxListDelay = 2 * time.Second

// readUsers reads all Services if a step needs them, otherwise only the Services for which the
// steps allocate. If all Services cannot be read, that is enough to allocate an address that is
// free: it takes nothing away.
func (w *worker) readUsers(ctx context.Context, steps []allocation.Step, live *liveState) (err error) {
	if slices.ContainsFunc(steps, allocation.Step.ReadsAllServices) {
		if steps[0].Reason != allocation.ReasonInUse {
			live.usage, err = w.services.read(ctx)
			return err
		}
		listing, cancel := context.WithTimeout(ctx, maxListDelay)
		live.usage, err = w.services.read(listing)
		cancel()
		if err == nil {
			return nil
		}
	}
	var services []allocation.Service
	read := map[allocation.Key]bool{}
	for _, step := range steps {
		if read[step.Owner.Key] {
			continue
		}
		read[step.Owner.Key] = true
		service, err := w.Cluster.Service(ctx, step.Owner.Key)
		if err != nil {
			return err
		}
		if service != nil {
			services = append(services, *service)
		}
	}
	live.usage = allocation.CountUsage(services)
	return nil
}

// checkStep returns the result of a step before it is applied: pending if it is to be applied.
func checkStep(step allocation.Step, live *liveState) repairstore.StepResult {
	switch result, reason := allocation.Check(step, live.toLiveState()); result {
	case allocation.CheckPassed:
		return repairstore.StepResult{}
	case allocation.CheckUnneeded:
		return repairstore.StepResult{State: repairstore.StepUnneeded, Time: time.Now()}
	default:
		return failedStep(errors.New(reason))
	}
}

// isRejected reports whether an error means that a write was rejected and may be rejected forever.
// Any other error may be gone with the next attempt.
func isRejected(err error) bool {
	for _, transient := range []error{
		guarded.ErrUnavailable, guarded.ErrConflict, rangestore.ErrUnavailable, rangestore.ErrConflict,
		term.ErrEnded, term.ErrNone, context.Canceled, context.DeadlineExceeded, errWaiting,
	} {
		if errors.Is(err, transient) {
			return false
		}
	}
	return true
}

func doneStep() repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepDone, Time: time.Now()}
}

func skippedStep(why string) repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepSkipped, Error: why, Time: time.Now()}
}

func failedStep(err error) repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepFailed, Error: wording.Clip(err.Error(), maxError), Time: time.Now()}
}
