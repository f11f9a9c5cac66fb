package nodestore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

// lateCache is a Cache that is synced late.
type lateCache struct {
	nodestore.Cache
	synced chan struct{}
}

func (c *lateCache) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (c *lateCache) Synced() <-chan struct{} { return c.synced }

// A list that takes long is a failure that is shown, and the loop is not taken for one that hangs.
// A pass that hangs is.
func TestLoop_ReportsWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cache, proceed := &lateCache{synced: make(chan struct{})}, make(chan struct{})
		runner, err := loop.NewRunner(loop.Config{Loops: []loop.Loop{{
			Name: "waits", Stall: 2 * nodestore.ReportWaiting,
			Run: func(ctx context.Context, report loop.Report) error {
				return nodestore.Loop{
					Name: "node health", Interval: time.Second, Report: report,
					Start: func(context.Context, *sync.WaitGroup) {}, End: func() {},
					Pass: func() error {
						report(nil)
						<-proceed
						return nil
					},
				}.Run(ctx, cache)
			},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = runner.Run(ctx) })
		time.Sleep(time.Hour)
		if err := runner.Check(); err != nil {
			t.Errorf("the loop that waits is taken for one that hangs: %v", err)
		}
		if status := runner.Status()[0]; status.State != loop.Failing || !strings.Contains(status.LastError, "node health has waited for") {
			t.Errorf("status is %+v, want a failure that says what it waits for", status)
		}
		close(cache.synced)
		time.Sleep(time.Hour)
		if err := runner.Check(); err == nil {
			t.Error("a pass hangs, and the loop is not stalled")
		}
		close(proceed)
		cancel()
		running.Wait()
	})
}
