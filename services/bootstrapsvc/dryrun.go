package bootstrapsvc

import (
	"errors"
	"time"

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

// dryRun returns what gets the observations of a loop instead of the Writer; nil for a loop that
// writes. Observations read the objects past every cache, so each is as new as the cluster.
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

// beginComparisons and endComparisons say that a term begins and has ended here: only the leader
// compares.
func (s *Service) beginComparisons() {
	for _, tracker := range s.shadow.All() {
		tracker.Doubt(time.Now(), "the first pass of the term has not ended")
	}
}

func (s *Service) endComparisons() {
	for _, tracker := range s.shadow.All() {
		tracker.Idle()
	}
}
