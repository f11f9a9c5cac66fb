package bootstrapsvc

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
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
)

// adoption reads kube-apiserver's own keys and asks those that live whether they are ready. The servers have no sidecar yet, so
// this replica asks in its place.
type adoption struct {
	leases   leases
	proberOf func(netip.Addr) prober
	port     int32
	cfg      Config
	logger   *slog.Logger
	// changed is called when the endpoints may have to change. It must not block.
	changed func()
	// verdicts are read by everybody and written by run's goroutine; never nil.
	verdicts atomic.Pointer[map[netip.Addr]apiservers.Verdict]
}

func newAdoption(leases leases, proberOf func(netip.Addr) prober, port int32, cfg Config, logger *slog.Logger) *adoption {
	a := &adoption{leases: leases, proberOf: proberOf, port: port, cfg: cfg, logger: logger}
	a.verdicts.Store(&map[netip.Addr]apiservers.Verdict{})
	return a
}

// adoptable is a claim and what else is known of it.
type adoptable struct {
	apiservers.Claim
	ttl    time.Duration
	probed time.Time
}

// claims are the keys as they are now, with what is known of whether their servers answer.
func (a *adoption) claims(ctx context.Context) ([]adoptable, error) {
	keys, err := a.leases.Read(ctx)
	if err != nil {
		return nil, err
	}
	verdicts := *a.verdicts.Load()
	var claims []adoptable
	for _, key := range keys {
		claim := adoptable{ttl: key.TTL, Claim: apiservers.Claim{
			Key: key.Key, Address: key.Address, Port: a.port, Leased: key.Leased, Alive: key.Alive, Unreadable: key.Unreadable,
		}}
		if verdict, known := verdicts[key.Address]; known {
			claim.probed = verdict.Last.Time
			if !verdict.Ready {
				claim.Silence = verdict.Last.Detail
			}
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// run is the loop's Run. On a replica that adopts nothing it only waits.
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
		now, err := a.look(ctx)
		report(err)
		if err == nil && !slices.Equal(before, now) {
			before = now
			a.changed()
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

// look asks every server whose key lives, all at once, and returns those that are to be endpoints.
func (a *adoption) look(ctx context.Context) ([]string, error) {
	reading, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	keys, err := a.leases.Read(reading)
	if err != nil {
		return nil, err
	}
	keys = slices.DeleteFunc(keys, func(key apiserverscontroller.MasterLease) bool { return !key.Alive || !key.Address.IsValid() })
	a.judge(ctx, keys)
	var ready []string
	for address, verdict := range *a.verdicts.Load() {
		if verdict.Ready {
			ready = append(ready, address.String())
		}
	}
	slices.Sort(ready)
	return ready, nil
}

// judge replaces the verdicts by those on the servers of keys. One that was never asked is trusted as its key is, until it has
// failed as often as a ready one may. Whoever answers with a certificate that cannot be verified here is no proof either way.
func (a *adoption) judge(ctx context.Context, keys []apiserverscontroller.MasterLease) {
	before := *a.verdicts.Load()
	after := make(map[netip.Addr]apiservers.Verdict, len(keys))
	var mu sync.Mutex // guards after
	var asking sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ProbeTimeout)
	defer cancel()
	for _, key := range keys {
		asking.Go(func() {
			outcome := a.proberOf(key.Address).Probe(ctx)
			outcome.OK = outcome.OK || outcome.Unverified
			verdict, known := before[key.Address]
			if !known {
				verdict = apiservers.Verdict{Ready: true, Succeeded: outcome.Time}
			}
			mu.Lock()
			defer mu.Unlock()
			after[key.Address] = verdict.After(outcome, a.cfg.patience())
		})
	}
	asking.Wait()
	if errors.Is(ctx.Err(), context.Canceled) {
		return // cut off by the end, which says nothing
	}
	for address, verdict := range after {
		if was, known := before[address]; !known || was.Ready != verdict.Ready {
			a.logger.Info("kube-apiserver that has no sidecar was asked", "address", address,
				"ready", verdict.Ready, "probe", verdict.Last.Detail)
		}
	}
	a.verdicts.Store(&after)
}
