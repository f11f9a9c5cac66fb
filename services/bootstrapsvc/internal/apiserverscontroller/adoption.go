package apiserverscontroller

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
)

// adoption probes kube-apiservers that have a master lease and no sidecar. This replica probes them
// in place of the missing sidecar.
type adoption struct {
	cfg      Config
	leases   MasterLeases
	proberOf func(netip.Addr) ReadinessProber
	logger   *slog.Logger
	// changed is called when the set of ready servers has changed. It must not block.
	changed func()
	// readiness is written by the goroutine of run and never nil.
	readiness atomic.Pointer[map[netip.Addr]apiservers.Readiness]
}

func newAdoption(cfg Config, deps Deps, changed func()) *adoption {
	a := &adoption{
		cfg: cfg, leases: deps.MasterLeases, proberOf: deps.ProberOf, logger: deps.Logger, changed: changed,
	}
	a.readiness.Store(&map[netip.Addr]apiservers.Readiness{})
	return a
}

// readinessOf is the readiness of a server, and whether it has been probed.
func (a *adoption) readinessOf(address netip.Addr) (apiservers.Readiness, bool) {
	readiness, probed := (*a.readiness.Load())[address]
	return readiness, probed
}

// run is the Run of the adoption loop. On a replica that adopts nothing, it waits for the end of
// ctx.
func (a *adoption) run(ctx context.Context, report loop.Report) error {
	if a == nil {
		report(nil)
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(a.cfg.ProbeInterval)
	defer ticker.Stop()
	var before []string
	for ctx.Err() == nil {
		ready, err := a.pass(ctx)
		report(err)
		if err == nil && !slices.Equal(before, ready) {
			before = ready
			a.changed()
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

// pass probes the servers of all live master leases and returns the addresses of the ready servers.
func (a *adoption) pass(ctx context.Context) ([]string, error) {
	reading, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	leases, err := a.leases.Read(reading)
	if err != nil {
		return nil, err
	}
	leases = slices.DeleteFunc(leases, func(lease apiservers.MasterLease) bool { return !lease.Alive || !lease.Address.IsValid() })
	a.probe(ctx, leases)
	var ready []string
	for address, readiness := range *a.readiness.Load() {
		if readiness.Ready {
			ready = append(ready, address.String())
		}
	}
	slices.Sort(ready)
	return ready, nil
}

// probe probes the servers of leases concurrently and replaces what is known about their readiness.
// A server that was never probed counts as ready, as its lease says, until it has failed as often
// as a ready server may. A certificate that cannot be verified here proves nothing either way.
func (a *adoption) probe(ctx context.Context, leases []apiservers.MasterLease) {
	before := *a.readiness.Load()
	after := make(map[netip.Addr]apiservers.Readiness, len(leases))
	var mu sync.Mutex // guards after
	var probes sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ProbeTimeout)
	defer cancel()
	for _, lease := range leases {
		probes.Go(func() {
			result := a.proberOf(lease.Address).Probe(ctx)
			result.OK = result.OK || result.Unverified
			readiness, known := before[lease.Address]
			if !known {
				readiness = apiservers.Readiness{Ready: true, LastSuccess: result.Time}
			}
			mu.Lock()
			defer mu.Unlock()
			after[lease.Address] = readiness.After(result, a.cfg.Thresholds)
		})
	}
	probes.Wait()
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the loop ends, and the probes that it interrupted prove nothing
	}
	for address, readiness := range after {
		if was, known := before[address]; !known || was.Ready != readiness.Ready {
			a.logger.Info("probed adopted kube-apiserver", "address", address,
				"ready", readiness.Ready, "probe", readiness.Last.Detail)
		}
	}
	a.readiness.Store(&after)
}
