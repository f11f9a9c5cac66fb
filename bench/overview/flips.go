package main

import (
	"context"
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/podset"
	"github.com/trivet-dev/trivet/bench/internal/sliceview"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	benchServices  = 50
	podsPerService = 100
)

// measureFlips creates 50 Services with 100 Pods each, flips the readiness of Pods at a constant
// rate, and measures the CPU time of slicesvc and the latency of the flips. `make bench-slices`
// compares the same with other programs.
func measureFlips(ctx context.Context, cfg config, kube kubernetes.Interface, slice *server.Server) ([]row, error) {
	began := time.Now()
	pods, err := podset.Create(ctx, kube, benchServices, podsPerService)
	if err != nil {
		return nil, err
	}
	view, err := sliceview.Watch(ctx, kube, podset.Namespace, discoveryv1.LabelServiceName)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	if err := view.Exact(ctx, pods); err != nil {
		return nil, err
	}
	setUp := time.Since(began)
	var (
		latencies pace.Latencies
		rate      float64
	)
	cpu, err := slice.Process().Spent(func() (err error) {
		latencies, rate, err = pods.Flip(ctx, pace.Steady{Count: cfg.flips, Rate: cfg.flipRate}, view)
		return err
	})
	if err != nil {
		return nil, err
	}
	resident, err := slice.Process().Resident()
	return []row{
		{what: "50 services × 100 pods: creating the pods until every one is in a slice", figure: fmt.Sprintf("%.1f s", setUp.Seconds())},
		{what: fmt.Sprintf("%d readiness flips at %.0f/s: slicesvc's CPU", cfg.flips, rate),
			figure: fmt.Sprintf("%.1f s, %.2f ms a flip", cpu.Seconds(), cpu.Seconds()*1000/float64(cfg.flips))},
		{what: "the same: latency p50 / p99", figure: fmt.Sprintf("%d / %d ms",
			latencies.At(0.5).Milliseconds(), latencies.At(0.99).Milliseconds())},
		{what: "the same: resident memory of slicesvc", figure: fmt.Sprintf("%d MiB", resident>>20)},
	}, err
}
