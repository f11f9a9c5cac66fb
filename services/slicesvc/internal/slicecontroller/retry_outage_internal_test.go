package slicecontroller

import (
	"errors"
	"net/url"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/kubeconn"
)

// A Service that could not be synced for minutes is synced soon after kube-apiserver is back.
func TestFailure_DelayIsShortAfterAnOutage(t *testing.T) {
	t.Parallel()
	away := failure{whole: 40, err: errors.Join(&url.Error{Op: "Patch", Err: syscall.ECONNREFUSED})}
	if got := away.delay(); got != kubeconn.MaxOutagePause {
		t.Errorf("delay after an outage is %v, want %v", got, kubeconn.MaxOutagePause)
	}
	refused := failure{whole: 40, err: apierrors.NewBadRequest("no")}
	if got := refused.delay(); got != maxRetryDelay {
		t.Errorf("delay after refusals is %v, want %v", got, maxRetryDelay)
	}
	throttled := failure{whole: 1, err: apierrors.NewTooManyRequests("busy", 8), throttled: 8 * time.Second}
	if got := throttled.delay(); got != 8*time.Second {
		t.Errorf("delay after 429 with Retry-After is %v, want 8 s", got)
	}
}
