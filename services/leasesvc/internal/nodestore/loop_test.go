package nodestore_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// emptyCache is a cluster without Nodes.
type emptyCache struct{ synced chan struct{} }

func (c emptyCache) Run(ctx context.Context) error {
	close(c.synced)
	<-ctx.Done()
	return nil
}

func (c emptyCache) Synced() <-chan struct{}    { return c.synced }
func (emptyCache) Changed() map[string]struct{} { return nil }
func (emptyCache) Node(string) *corev1.Node     { return nil }
func (emptyCache) Pods(string) []*corev1.Pod    { return nil }

func TestLoop_PassesAQuarterOfItsIntervalAfterItIsWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var passes []time.Duration
		begin := time.Now()
		wake := make(chan struct{}, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		time.AfterFunc(430*time.Millisecond, func() { wake <- struct{}{} })
		err := nodestore.Loop{
			Name: "test", Interval: 200 * time.Millisecond, Wake: wake, Report: func(error) {}, Start: func(context.Context, *sync.WaitGroup) {},
			Pass: func() error { passes = append(passes, time.Since(begin)); return nil }, End: func() {},
		}.Run(ctx, emptyCache{synced: make(chan struct{})})
		if err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{0, 200 * time.Millisecond, 400 * time.Millisecond, 480 * time.Millisecond, 600 * time.Millisecond, 800 * time.Millisecond}
		if !slices.Equal(passes, want) {
			t.Errorf("passes at %v, want %v", passes, want)
		}
	})
}
