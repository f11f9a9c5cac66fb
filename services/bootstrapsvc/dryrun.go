package bootstrapsvc

import (
	"context"
	"errors"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	baselineshadow "github.com/trivet-dev/trivet/services/bootstrapsvc/internal/shadow"
)

// comparedObjects is how many objects each loop compares: the system namespaces, the Service, and
// the Endpoints object with its slice.
func comparedObjects(loop string) int {
	switch loop {
	case baselinecontroller.NamespacesLoop:
		return len(baseline.SystemNamespaces())
	case apiserverscontroller.EndpointsLoop:
		return 2
	}
	return 1
}

// dryRun returns what gets the observations of a loop in dry run; nil for one that is not.
// Observations read the objects past every cache, so each is as new as the cluster.
func (s *Service) dryRun(loop string) func(baselinecontroller.Observation, error) {
	tracker := s.shadow.Tracker(loop)
	if tracker == nil {
		return nil
	}
	return func(observed baselinecontroller.Observation, err error) {
		now := time.Now()
		if err = errors.Join(err, observed.Incomplete); err != nil {
			tracker.Doubt(now, err.Error())
			return
		}
		if why := baselineshadow.Undetermined(observed.Changes); why != "" {
			tracker.Doubt(now, why)
			return
		}
		found := baselineshadow.Compare(observed.Changes)
		for subject, differences := range found {
			tracker.Observe(now, subject, differences)
		}
		tracker.Passed(now, comparedObjects(loop), 0, func(subject string) bool {
			_, current := found[subject]
			return current
		})
	}
}

// withShadow adds to the dry runs of loops that only the leader compares.
func (s *Service) withShadow(loops []loop.Loop) []loop.Loop {
	for i := range loops {
		tracker, compare := s.shadow.Tracker(loops[i].Name), loops[i].Shadow
		if tracker == nil {
			continue
		}
		tracker.Idle()
		loops[i].Shadow = func(ctx context.Context, report loop.Report) error {
			tracker.Doubt(time.Now(), "the first pass of the term has not ended")
			defer tracker.Idle()
			return compare(ctx, report)
		}
	}
	return loops
}
