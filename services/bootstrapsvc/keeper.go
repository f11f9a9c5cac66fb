package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// maxRounds bounds how often one pass plans and writes. The first round repairs, the second finds nothing more to do; the
// rest is for writers that get in between.
const maxRounds = 4

// errUnsettled: somebody keeps changing what was repaired.
var errUnsettled = fmt.Errorf("still not as it must be after %d rounds, somebody else keeps changing it", maxRounds)

// facts are counts by their stable names.
type facts = map[string]int64

// observation is one look at the objects of a duty.
type observation struct {
	changes []baseline.Change
	facts   facts
}

// keeper makes the passes of one duty: look, plan, write, and look again until there is nothing to write.
type keeper struct {
	loop    string
	objects objects
	logger  *slog.Logger
	metrics *metrics
	// repairs counts writes over all keepers since the process started.
	repairs *atomic.Int64
	// known is what the last look counted; nil while this replica does not lead.
	known atomic.Pointer[facts]
	// reported are the details told in the log last; they belong to the duty's goroutine.
	reported []string
}

// settle makes one pass. It returns what it wrote, in order, and then what it found that needs a person.
func (k *keeper) settle(ctx context.Context, look func(context.Context) (observation, error)) ([]baseline.Change, error) {
	var done []baseline.Change
	var obstacle error
	for range maxRounds {
		seen, err := look(ctx)
		if err != nil {
			return done, err
		}
		k.known.Store(&seen.facts)
		steps := baseline.Writing(seen.changes)
		if len(steps) == 0 {
			return append(done, k.tell(seen.changes)...), nil
		}
		var written []baseline.Change
		written, obstacle = k.write(ctx, steps)
		done = append(done, written...)
		if obstacle != nil && !errors.Is(obstacle, baselinecontroller.ErrConflict) {
			return done, obstacle
		}
	}
	return done, errors.Join(fmt.Errorf("%w: %w", errUnsettled, baselinecontroller.ErrConflict), obstacle)
}

// write tries every step, because one object that cannot be written is no reason to leave the others as they are.
func (k *keeper) write(ctx context.Context, steps []baseline.Change) ([]baseline.Change, error) {
	var written []baseline.Change
	var obstacles []error
	for _, step := range steps {
		if err := k.objects.Apply(ctx, step); err != nil {
			obstacles = append(obstacles, err)
			continue
		}
		k.repairs.Add(1)
		k.logger.InfoContext(ctx, "wrote", "kind", step.Kind().Kind, "name", step.Object.GetName(),
			"verb", step.Verb, "reason", step.Reason, "detail", step.Detail)
		written = append(written, step)
	}
	return written, errors.Join(obstacles...)
}

// tell makes findings visible: in metrics always, in the log once for as long as they last. It returns them.
func (k *keeper) tell(reports []baseline.Change) []baseline.Change {
	k.metrics.found(k.loop, reports)
	details := make([]string, 0, len(reports))
	for _, report := range reports {
		details = append(details, report.Detail)
		if !slices.Contains(k.reported, report.Detail) {
			k.logger.Warn("found what needs a person or time", "kind", report.Kind().Kind,
				"name", report.Object.GetName(), "reason", report.Reason, "detail", report.Detail)
		}
	}
	k.reported = details
	return reports
}

// countInto adds what is known.
func (k *keeper) countInto(all facts) {
	if known := k.known.Load(); known != nil {
		maps.Copy(all, *known)
	}
}
