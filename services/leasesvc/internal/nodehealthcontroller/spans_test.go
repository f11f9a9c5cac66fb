package nodehealthcontroller_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/test/lab/otlptest"
)

// The verdict, both writes of the Node and that of its Pod are one trace.
func TestRun_AVerdictAndItsWritesAreOneTrace(t *testing.T) {
	t.Parallel()
	collector := otlptest.New(t)
	running, stop := collector.Run(t, "leasesvc")
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		metrics, err := nodehealthcontroller.NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg := config(t, metrics, 1)
		cfg.Tracer = running.Tracer("leasesvc")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- nodehealthcontroller.New(cfg).Run(ctx, f.cluster(heldShards(t.Context(), 0)), func(error) {})
		}()
		synctest.Wait()
		f.beat(100 * time.Second)
		f.beat(42*time.Second, "n0")
		f.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	stop()
	spans := collector.Spans()
	var verdict otlptest.Span
	for _, span := range spans {
		if span.Name == "node is silent" {
			verdict = span
		}
	}
	if verdict.Span == nil || verdict.Parent() != "" || verdict.Values["trivet.node.name"] != "n0" || verdict.Values["trivet.lease.resource_version"] == "" {
		t.Fatalf("no verdict on n0 with its Lease among %v", spans)
	}
	var writes []string
	for _, span := range spans {
		if span.Parent() != verdict.ID() {
			continue
		}
		writes = append(writes, span.Name+" "+span.Values["trivet.step"]+span.Values["trivet.pod.name"])
		if span.Trace() != verdict.Trace() || span.Values["trivet.shard"] != "0" || span.Values["trivet.epoch"] != "1" {
			t.Errorf("%s has the attributes %v, want the shard and the epoch", span.Name, span.Values)
		}
	}
	slices.Sort(writes)
	if want := []string{"mark pod not ready pod-n0", "write node add-no-execute", "write node mark-unknown"}; !slices.Equal(writes, want) {
		t.Errorf("under the verdict are %q, want %q", writes, want)
	}
}
