package apiserverscontroller

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
)

// One server without a key answered and hangs since. The key of another one, which is dead, expires
// meanwhile. Its verdict comes as soon as without the first one.
func TestUnreported_ProbeThatHangsDelaysNoOtherVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs, dead := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
		started := time.Now()
		u := newUnreported(Config{
			ProbeInterval: time.Second, ProbeTimeout: 10 * time.Second,
			Thresholds: apiservers.ReadinessThresholds{Failures: 3, Silence: time.Minute},
		}, Deps{
			Logger: slog.New(slog.DiscardHandler),
			ProbeOf: func(address netip.Addr) Probe {
				return func(ctx context.Context) apiservers.ProbeResult {
					if address == hangs && time.Since(started) > 2*time.Second {
						<-ctx.Done()
						return apiservers.ProbeResult{Time: time.Now(), Silent: true}
					}
					return apiservers.ProbeResult{Time: time.Now(), OK: address == hangs}
				}
			},
		}, func() {})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			u.run(ctx)
		}()
		defer func() {
			cancel()
			<-ended
		}()
		published := []netip.Addr{hangs, dead}
		u.update(ServerList{Servers: []KnownServer{{Server: apiservers.Server{Address: dead}}}}, published, true)
		time.Sleep(5 * time.Second)
		u.update(ServerList{}, published, true)
		time.Sleep(firstProbePause + time.Millisecond)
		for _, of := range u.list(ServerList{}, published) {
			if of.Failed != (of.Address == dead) {
				t.Errorf("%s: failed = %t", of.Address, of.Failed)
			}
		}
		time.Sleep(2 * time.Minute)
		for _, of := range u.list(ServerList{}, published) {
			if !of.Failed {
				t.Errorf("%s, which hangs, has not failed", of.Address)
			}
		}
	})
}
