package status

import (
	"time"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Freshness returns the origin of a response of the old API.
func Freshness(replicaID string, epoch int64, resourceVersion string) *statusv1.Freshness {
	return &statusv1.Freshness{ReplicaId: replicaID, Epoch: epoch, ReadTime: timestamp(time.Now()), ResourceVersion: resourceVersion}
}
