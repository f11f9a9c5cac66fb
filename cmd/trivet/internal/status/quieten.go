package status

import (
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// quieten takes from a replica's answer what changes by itself.
func quieten(replica *statusv1.GetStatusResponse) {
	replica.Counts, replica.Freshness = nil, nil
	for _, term := range replica.GetTerms() {
		term.Remaining = nil
	}
	for _, dependency := range replica.GetDependencies() {
		dependency.LastContactTime = nil
	}
	for _, loop := range replica.GetLoops() {
		loop.LastRunTime, loop.LastSuccessTime, loop.Runs, loop.Failures = nil, nil, 0, 0
	}
}
