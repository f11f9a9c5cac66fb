package leasesvc

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
)

func TestConfig_WarnsOfRareWritesWithoutNodeHealth(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy     class.WritePolicy
		nodeHealth bool
		want       bool
	}{
		"on-change without node health": {policy: class.WriteOnChange, want: true},
		"on-change with node health":    {policy: class.WriteOnChange, nodeHealth: true},
		"relaxed without node health":   {policy: class.WriteRelaxed},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			cfg := Config{Writes: class.Writes{Policy: c.policy, RefreshInterval: 5 * time.Minute}}
			cfg.warn(slog.New(slog.NewTextHandler(&log, nil)), c.nodeHealth)
			warned := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), "lease_refresh_interval=5m0s")
			if warned != c.want {
				t.Errorf("warned %v, want %v: %s", warned, c.want, log.String())
			}
		})
	}
}

func TestConfig_WarnsOfAClassWithoutHolders(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	cfg := Config{Writes: class.DefaultWrites(), FurtherClasses: []class.Class{
		{Name: "closed"}, {Name: "open", HolderRule: class.HolderRule{Type: class.RuleNode}},
	}}
	cfg.warn(slog.New(slog.NewTextHandler(&log, nil)), false)
	if got := log.String(); !strings.Contains(got, "class=closed") || strings.Contains(got, "class=open") {
		t.Errorf("logged %s, want a warning of the class without a rule", got)
	}
}
