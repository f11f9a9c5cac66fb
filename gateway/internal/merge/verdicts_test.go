package merge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestStatus_AServiceIsNotOKBecauseAnotherHasManyProblems(t *testing.T) {
	noisy := &statusv1.ReplicaStatus{Ready: true, Replica: &statusv1.Replica{Id: "l", Service: "leasesvc"}, ShardCount: 1, LedShards: []int32{0}}
	for i := range 200 {
		noisy.Problems = append(noisy.Problems, &metav1.Problem{Code: "X", Severity: metav1.Problem_SEVERITY_ERROR, Message: fmt.Sprint(i)})
	}
	response := merge.Status("c", []merge.Source{{
		Replica: &statusv1.Replica{Id: "l", Service: "leasesvc"}, Answer: &statusv1.GetStatusResponse{Status: noisy},
	}}, time.Now())
	for _, service := range response.Status.Services {
		if service.Verdict.State != metav1.Verdict_STATE_FAILED {
			t.Errorf("%s: %v", service.Service, service.Verdict)
		}
	}
}
