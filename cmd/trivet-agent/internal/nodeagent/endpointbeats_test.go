package nodeagent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/identity"
)

// An answer to a late or repeated beat does not make the kubelet's observation younger. The
// endpoint must not wait a third of the duration of the Lease from the answer on.
func TestEndpointBeats_ARenewalIsAsOldAsItsObservation(t *testing.T) {
	f := newFixture(t)
	f.rotate(t, "node-1", "first.pem")
	cfg := f.config()
	cfg.Endpoint.Listen = "127.0.0.1:7604"
	b := newBeats(&cfg, func() []string { return []string{f.leasesvc.address} }, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.run(ctx, func() (identity.Files, error) { return cfg.credentialFiles(nil) }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	observed := time.Now().Add(-9 * time.Second)
	if err := b.Report(observed); err != nil {
		t.Fatal(err)
	}
	var renewed time.Time
	await(t, "leasesvc accepts the beat", func() bool {
		at, live := endpointBeats{b}.Renewed()
		renewed = at
		return live && !at.IsZero()
	})
	if renewed.After(observed) {
		t.Errorf("renewed %v after the observation", renewed.Sub(observed))
	}
}
