package nodestore_test

import (
	"errors"
	"net/url"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

func TestRetryDelay_DoesNotExceedAMinute(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		failures int
		want     time.Duration
	}{
		"first":           {apierrors.NewTooManyRequests("busy", 0), 0, time.Second},
		"after failures":  {apierrors.NewBadRequest("it failed"), 20, nodestore.MaxRetryDelay},
		"after an outage": {&url.Error{Op: "Patch", Err: errors.New("connection refused")}, 20, kubeconn.MaxOutagePause},
		"asked for 45 s":  {apierrors.NewTooManyRequests("busy", 45), 0, 45 * time.Second},
		"asked for a day": {apierrors.NewTooManyRequests("busy", 86_400), 0, time.Minute},
	} {
		if got := nodestore.RetryDelay(c.err, c.failures); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
