package peers_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/peers"
)

// openPlain runs a Forwarder with one peer outside any bubble.
func openPlain(t *testing.T, b *office) *desk {
	t.Helper()
	metrics, err := peers.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, Forwarder: peers.New(peers.Config{
		Dial: func(string) (peers.Link, error) { return b, nil }, Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
	})}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	testkit.Eventually(t, 5*time.Second, func() error {
		if !d.Offer("b", []peers.Beat{beatOf("first", 1)}) {
			return fmt.Errorf("it does not run yet")
		}
		return nil
	})
	return d
}

// awaitLast waits until the peer has got the last beat of every holder.
func (d *desk) awaitLast(t *testing.T, b *office, holders int, last uint64) {
	t.Helper()
	newest := map[string]uint64{}
	testkit.Eventually(t, 20*time.Second, func() error {
		for _, batch := range b.taken() {
			if len(batch) > 1000 {
				t.Fatalf("a batch of %d", len(batch))
			}
			for _, delivery := range batch {
				newest[delivery.Name] = max(newest[delivery.Name], delivery.Sequence)
			}
		}
		have := 0
		for _, sequence := range newest {
			if sequence == last {
				have++
			}
		}
		if have != holders {
			return fmt.Errorf("%d of %d holders arrived with their last beat", have, holders)
		}
		return nil
	})
}
