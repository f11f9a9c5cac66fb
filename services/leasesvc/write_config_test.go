package leasesvc

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestWriteConfig_PolicyKeepsWhatLeasesPromise(t *testing.T) {
	class := defaultNodeClass()
	for policy, want := range map[WritePolicy]writeback.Policy{
		WriteMirror:   {Mode: writeback.Mirror, Renew: 10 * time.Second, Duration: 40 * time.Second},
		WriteRelaxed:  {Mode: writeback.Relaxed, Renew: 24 * time.Second, Duration: 40 * time.Second},
		WriteOnChange: {Mode: writeback.OnChange, Renew: 5 * time.Minute, Duration: 500 * time.Second},
	} {
		c := defaultWrites()
		c.Policy = policy
		if diff := cmp.Diff(want, c.policy(&class)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", policy, diff)
		}
	}
	c := WriteConfig{Policy: WriteOnChange, RefreshInterval: 10 * time.Second}
	if got := c.policy(&class).Duration; got != class.LeaseDuration {
		t.Errorf("refreshed every 10 s, a Lease says %v, want the %v of its class", got, class.LeaseDuration)
	}
}

func TestWriteConfig_WarnsOfReadersWhoGoByTheTimesOfLeases(t *testing.T) {
	for name, c := range map[string]struct {
		policy WritePolicy
		judged bool
		warned bool
	}{
		"on-change alone":                {policy: WriteOnChange, warned: true},
		"on-change with nodes judged":    {policy: WriteOnChange, judged: true},
		"relaxed, which anybody may use": {policy: WriteRelaxed},
	} {
		var log strings.Builder
		writes := WriteConfig{Policy: c.policy, RefreshInterval: 5 * time.Minute}
		writes.warn(slog.New(slog.NewTextHandler(&log, nil)), c.judged)
		if warned := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), "lease_refresh_interval=5m0s"); warned != c.warned {
			t.Errorf("%s: warned %v, want %v: %s", name, warned, c.warned, log.String())
		}
	}
}
