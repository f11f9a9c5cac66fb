package nodeagent

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/identity"
)

// The endpoint answers a write when leasesvc has what it saw. An answer to an earlier beat, or one
// that says that the node is registered, is none.
func TestEndpointBeats_ABeatIsAcknowledgedWhenItsObservationIs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b, _ := f.beatsOfEndpoint(t, f.config())
	observed := time.Now().Add(-9 * time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Beat(ctx, observed); err != nil {
		t.Fatal(err)
	}
	if seen := b.Renewed().Observed; seen.After(observed) {
		t.Errorf("leasesvc has an observation %v after that of the beat", seen.Sub(observed))
	}
	brief, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	if err := b.Beat(brief, time.Now()); err == nil {
		t.Error("a beat that is not due yet counts as acknowledged")
	}
}

// A kubelet writes nothing while its endpoint is away. The end of an agent must not leave the
// kubelet with the rest of a grace period, nor without its Lease.
func TestEndpointBeats_AnAgentThatStopsReleasesTheLeaseAndKeepsItsObject(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ registered, forGood, released, kept bool }{
		"restart":                   {registered: true, released: true, kept: true},
		"the node stops for good":   {registered: true, forGood: true, released: true},
		"the kubelet wrote no beat": {},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			cfg := f.config()
			cfg.ReleaseOnStop = want.forGood
			b, stop := f.beatsOfEndpoint(t, cfg)
			if want.registered {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := b.Beat(ctx, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			f.leasesvc.mu.Lock()
			defer f.leasesvc.mu.Unlock()
			if got := len(f.leasesvc.released) == 1; got != want.released {
				t.Fatalf("released %v, want %v", f.leasesvc.released, want.released)
			}
			if want.released && f.leasesvc.released[0].KeepObject != want.kept {
				t.Errorf("the object stays: %v, want %v", !want.kept, want.kept)
			}
		})
	}
}

// A beat says since when the kubelet is cut off. That it is no more is said before its next
// renewal, with the age of the last one, and only if leasesvc was told.
func TestEndpointBeats_SayThatTheKubeletIsCutOffAndAtOnceThatItIsNoMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b, _ := f.beatsOfEndpoint(t, f.config())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	beatNow := func() {
		t.Helper()
		if err := b.Beat(ctx, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	since := time.Now().Add(-20 * time.Second)
	b.CutOff(since) // before there is an agent
	beatNow()
	first := f.leasesvc.awaitBeat(t, "registered", 0, func(b beat) bool { return b.registered })
	if first.cutOff < 20*time.Second || first.cutOff > 20*time.Second+patience {
		t.Errorf("the registration says that the kubelet is cut off for %v", first.cutOff)
	}
	_, n := f.leasesvc.last()
	beatNow()
	if second := f.leasesvc.awaitBeat(t, "beat", n, func(beat) bool { return true }); second.cutOff < first.cutOff {
		t.Errorf("the next beat says that the kubelet is cut off for %v", second.cutOff)
	}
	observed := b.Renewed().Observed
	_, n = f.leasesvc.last()
	b.CutOff(time.Time{})
	if cleared := f.leasesvc.awaitBeat(t, "report", n, func(beat) bool { return true }); cleared.cutOff >= 0 || !cleared.reported {
		t.Errorf("the report after a request was served: %+v", cleared)
	}
	await(t, "accepted", func() bool { return b.Renewed().Accepted.After(observed) })
	if got := b.Renewed().Observed; !got.Equal(observed) {
		t.Errorf("the report has moved the last observation by %v", got.Sub(observed))
	}
	_, n = f.leasesvc.last()
	b.CutOff(time.Now())
	b.CutOff(time.Time{}) // between two beats
	time.Sleep(5 * beatInterval)
	if last, m := f.leasesvc.last(); m != n {
		t.Errorf("a beat %+v without a renewal", last)
	}
	beatNow()
	if last, _ := f.leasesvc.last(); last.cutOff >= 0 {
		t.Errorf("the last beat says that the kubelet is cut off for %v", last.cutOff)
	}
}

// beatsOfEndpoint runs the beats of an agent in endpoint mode until stop, or the end of the test.
func (f *fixture) beatsOfEndpoint(t *testing.T, cfg Config) (b *beats, stop func()) {
	t.Helper()
	f.rotate(t, "node-1", "first.pem")
	cfg.Endpoint.Listen = "127.0.0.1:7604"
	b = newBeats(&cfg, func() []string { return []string{f.leasesvc.address} }, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.run(ctx, func() (identity.Files, error) { return cfg.credentialFiles(nil) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return b, stop
}
