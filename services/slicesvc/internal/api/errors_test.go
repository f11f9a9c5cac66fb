package api

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

func TestToStatus_ThrottledWriteHasRetryInfo(t *testing.T) {
	err := toStatus(fmt.Errorf("update: %w", apierrors.NewTooManyRequests("later", 3)))
	if status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != APIServerUnreachableReason || rpcerror.RetryAfterOf(err) != 3*time.Second {
		t.Errorf("error is %v, retry after %v; want %s after 3s", err, rpcerror.RetryAfterOf(err), APIServerUnreachableReason)
	}
}
