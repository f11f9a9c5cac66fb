package allocationcontroller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// maxHistorySteps bounds the steps of all stored repairs, so that a list of them fits into one
// message.
const maxHistorySteps = 5000

// repairs are the stored repairs as far as the controller needs them.
type repairs struct {
	historyLimit int
	backoff      *repairBackoff
	// unfinished are the repairs with pending steps, the oldest first. byFinding has the one with
	// pending steps of a finding.
	unfinished []*unfinishedRepair
	byFinding  map[string]*unfinishedRepair
	// ended are the ended repairs, the oldest first.
	ended []endedRepair
	// outdated reports that the store may have more than is known here.
	outdated bool
	// readErrs has the errors of the findings that could not be read live.
	readErrs map[string]error
}

type endedRepair struct {
	id      string
	steps   int
	started time.Time
	// automatic reports that no person approved the repair.
	automatic bool
	// failed are the findings with a step that failed.
	failed []string
}

func newEndedRepair(repair repairstore.Repair) endedRepair {
	ended := endedRepair{id: repair.ID, steps: len(repair.Steps), started: repair.Started, automatic: repair.Requester.IsAutomatic()}
	for number, result := range repair.Results {
		if result.State == repairstore.StepFailed {
			ended.failed = append(ended.failed, repair.Steps[number].Finding)
		}
	}
	return ended
}

func newRepairs(historyLimit int) *repairs {
	return &repairs{
		historyLimit: historyLimit, backoff: newRepairBackoff(), byFinding: map[string]*unfinishedRepair{}, readErrs: map[string]error{},
	}
}

// restore takes over the repairs of the store, the newest first. What is known of an unfinished
// repair and not stored yet stays.
func (rs *repairs) restore(stored []repairstore.Repair) {
	known := rs.unfinished
	rs.ended, rs.unfinished, rs.outdated = nil, nil, false
	rs.byFinding = map[string]*unfinishedRepair{}
	for _, repair := range slices.Backward(stored) {
		at := slices.IndexFunc(known, func(of *unfinishedRepair) bool { return of.ID == repair.ID })
		switch {
		case !repair.Ended.IsZero():
			rs.ended = append(rs.ended, newEndedRepair(repair))
			if at >= 0 {
				known[at].Repair = repair
				known[at].answer(nil)
			}
		case at >= 0:
			known[at].merge(repair)
			rs.add(known[at])
		default:
			rs.add(newUnfinishedRepair(repair))
		}
	}
}

func (rs *repairs) add(repair *unfinishedRepair) {
	rs.unfinished = append(rs.unfinished, repair)
	for _, step := range repair.Steps {
		if other := rs.byFinding[step.Finding]; other == nil || !other.pendingFindings().has(step.Finding) {
			rs.byFinding[step.Finding] = repair
		}
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

// pendingOf returns the unfinished repair with a pending step of a finding, nil if there is none.
func (rs *repairs) pendingOf(finding string) *unfinishedRepair {
	if repair := rs.byFinding[finding]; repair != nil && len(repair.pendingStepsOf(finding)) > 0 {
		return repair
	}
	return nil
}

// overlapping returns an unfinished repair with a pending step of one of the findings, nil if there
// is none.
func (rs *repairs) overlapping(findings []string) *unfinishedRepair {
	for _, finding := range findings {
		if repair := rs.pendingOf(finding); repair != nil {
			return repair
		}
	}
	return nil
}

// read forgets the error of a finding that was read.
func (rs *repairs) read(finding string) {
	delete(rs.readErrs, finding)
	rs.backoff.succeeded(finding)
}

func (rs *repairs) retryErr() error {
	maps.DeleteFunc(rs.readErrs, func(finding string, _ error) bool { return !rs.backoff.hasFailed(finding) })
	failing := map[string]error{}
	for _, repair := range rs.unfinished {
		if err := repair.retryErr(); err != nil {
			failing[repair.ID] = fmt.Errorf("repair %s is not finished, it will be continued: %w", repair.ID, err)
		}
	}
	return errors.Join(joinErrors(rs.readErrs), joinErrors(failing))
}

func (rs *repairs) moveToEnded(repair *unfinishedRepair) {
	rs.remove(repair)
	rs.ended = append(rs.ended, newEndedRepair(repair.Repair))
}

func (rs *repairs) remove(repair *unfinishedRepair) {
	rs.unfinished = slices.DeleteFunc(rs.unfinished, func(other *unfinishedRepair) bool { return other == repair })
	maps.DeleteFunc(rs.byFinding, func(_ string, other *unfinishedRepair) bool { return other == repair })
}

// abort answers every caller that waits for a repair, because the term ends.
func (rs *repairs) abort() {
	for _, repair := range rs.unfinished {
		repair.abort()
	}
}

// excess returns the IDs of the oldest ended repairs beyond the limits of the history. The repairs
// that people approved and the automatic ones have a history each, so that neither pushes out the
// other.
func (rs *repairs) excess() []string {
	var ids []string
	for _, automatic := range []bool{false, true} {
		repairs, steps := 0, 0
		for _, repair := range slices.Backward(rs.ended) {
			if repair.automatic != automatic {
				continue
			}
			repairs++
			steps += repair.steps
			if repairs > rs.historyLimit || steps > maxHistorySteps/2 {
				ids = append(ids, repair.id)
			}
		}
	}
	return ids
}

func (rs *repairs) forget(ids []string) {
	rs.ended = slices.DeleteFunc(rs.ended, func(of endedRepair) bool { return slices.Contains(ids, of.id) })
}

// maxJoined bounds the errors that are joined: an outage fails everything alike.
const maxJoined = 3

func joinErrors(errs map[string]error) error {
	var joined []error
	for _, finding := range slices.Sorted(maps.Keys(errs)) {
		if len(joined) == maxJoined {
			joined = append(joined, fmt.Errorf("and %d more", len(errs)-maxJoined))
			break
		}
		joined = append(joined, errs[finding])
	}
	return errors.Join(joined...)
}
