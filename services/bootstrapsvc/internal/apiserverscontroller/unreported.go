package apiserverscontroller

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

const (
	// firstProbeTimeout bounds a probe of an unreported address that has not answered yet. A dead
	// machine must leave soon after its key.
	firstProbeTimeout = time.Second
	// firstProbeFailures is how many probes of such an address have to fail.
	firstProbeFailures = 2
	// firstProbePause is the pause between them.
	firstProbePause = 250 * time.Millisecond
)

// unreported probes published addresses that have no key of a sidecar: the key was lost, the
// machine is lost, or the sidecar was never installed. A missing key alone proves nothing about the
// server, so only failed probes remove such an address.
//
// Addresses count if they were published when the term began, or had a key during the term. Any
// other address without a key was written by another program.
type unreported struct {
	Config
	Deps
	// changed is called when a verdict changes. It must not block.
	changed func()
	wake    chan struct{} // holds a value when there is a new address to probe

	mu sync.Mutex // guards the fields below
	// known are the addresses that count; nil before the first pass of a term.
	known map[netip.Addr]bool
	// probes has the addresses that count, are published and have no key.
	probes map[netip.Addr]unreportedProbe
}

// unreportedProbe is what the probes of one address show.
type unreportedProbe struct {
	readiness apiservers.Readiness
	answered  bool // one of the probes succeeded
	failed    bool
	running   bool
	next      time.Time // when the next probe is due
}

func newUnreported(cfg Config, deps Deps, changed func()) *unreported {
	return &unreported{Config: cfg, Deps: deps, changed: changed, wake: make(chan struct{}, 1)}
}

// forget drops what only a leader knows.
func (u *unreported) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.known, u.probes = nil, nil
}

// update takes over what a pass of the leader has read. An address that was published only in what
// could not be read still counts.
func (u *unreported) update(list ServerList, published []netip.Addr, complete bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	reported := list.reported()
	known, probes := map[netip.Addr]bool{}, map[netip.Addr]unreportedProbe{}
	for _, address := range reported {
		known[address] = true
	}
	for _, address := range published {
		if u.known == nil || u.known[address] {
			known[address] = true
		}
		if slices.Contains(u.Address.All(), address) {
			continue // its own sidecar, in this process, is about to write the key
		}
		if _, probed := u.probes[address]; known[address] && !slices.Contains(reported, address) {
			probes[address] = u.probes[address]
			if !probed {
				notify(u.wake)
			}
		}
	}
	u.probes = probes
	switch {
	case complete:
		u.known = known
	case u.known != nil:
		maps.Copy(u.known, known)
	}
}

// list returns the addresses that count, are published and have no key, with their verdicts. A
// replica that does not lead has no verdicts.
func (u *unreported) list(list ServerList, published []netip.Addr) []apiservers.Unreported {
	u.mu.Lock()
	defer u.mu.Unlock()
	reported := list.reported()
	var found []apiservers.Unreported
	for _, address := range published {
		if slices.Contains(reported, address) || u.known != nil && !u.known[address] {
			continue
		}
		probe := u.probes[address]
		detail := "no probe has ended yet"
		if probe.answered || probe.failed {
			detail = "its probe says: " + probe.readiness.Last.Detail
		}
		found = append(found, apiservers.Unreported{Address: address, Failed: probe.failed, Detail: detail})
	}
	return found
}

// run probes until ctx ends. An address whose probe hangs delays no other.
func (u *unreported) run(ctx context.Context) {
	var probing sync.WaitGroup
	defer probing.Wait()
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		case <-due.C:
		}
		now := time.Now()
		if next := u.beginProbes(ctx, now, &probing); !next.IsZero() {
			due.Reset(next.Sub(now))
		}
	}
}

// beginProbes begins the probes that are due, and returns when the next one is, zero if none is
// planned.
func (u *unreported) beginProbes(ctx context.Context, now time.Time, probing *sync.WaitGroup) (next time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for address, probe := range u.probes {
		switch {
		case probe.running:
		case now.Before(probe.next):
			if next.IsZero() || probe.next.Before(next) {
				next = probe.next
			}
		default:
			probe.running = true
			u.probes[address] = probe
			probing.Go(func() { u.probe(ctx, address, probe.answered) })
		}
	}
	return next
}

func (u *unreported) probe(ctx context.Context, address netip.Addr, answered bool) {
	timeout := u.ProbeTimeout
	if !answered {
		timeout = min(timeout, firstProbeTimeout)
	}
	probing, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result := u.ProbeOf(address)(probing)
	if ctx.Err() != nil {
		return // the term ends, and the probe that it interrupted proves nothing
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	probe, wanted := u.probes[address]
	if !wanted {
		return
	}
	before := probe
	probe = probe.after(result, u.Thresholds)
	probe.running, probe.next = false, time.Now().Add(u.ProbeInterval)
	if !probe.answered && !probe.failed {
		probe.next = time.Now().Add(firstProbePause)
	}
	u.probes[address] = probe
	notify(u.wake)
	if probe.failed != before.failed {
		u.Logger.Warn("verdict on a published kube-apiserver without a key changed",
			"address", address, "failed", probe.failed, "probe", result.Detail)
		u.changed()
	}
}

// after returns the probe after one more result. An address that never answered fails soon. One
// that answered has the patience that every server has.
func (p unreportedProbe) after(result apiservers.ProbeResult, thresholds apiservers.ReadinessThresholds) unreportedProbe {
	p.readiness = p.readiness.After(result, thresholds)
	p.answered = p.answered || result.OK
	p.failed = !p.readiness.Ready
	if !p.answered {
		p.failed = p.readiness.Failures >= firstProbeFailures
	}
	return p
}

// reported returns the addresses of servers with a key that can be read and expires with its
// writer.
func (l ServerList) reported() []netip.Addr {
	var reported []netip.Addr
	for _, known := range l.Servers {
		if known.Source != FromFlag && !known.Stale && !known.Unreadable {
			reported = append(reported, hostaddress.Addresses{Primary: known.Address, Secondary: known.Secondary}.All()...)
		}
	}
	return reported
}
