package leasesvc_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

func TestDefaultConfig_IsWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	want := leasesvc.Config{
		Classes: []class.Class{{
			Name: "node", Namespace: "kube-node-lease", HeartbeatInterval: 5 * time.Second, SuspectAfter: 2, Grace: 20 * time.Second,
			RenewInterval: 10 * time.Second, LeaseDuration: 40 * time.Second, Retention: time.Hour, OwnedByNode: true,
			HolderRule: class.HolderRule{Type: class.RuleNode},
		}},
		Shards: 64, MaxSessions: 200_000, MaxRegistrations: 5000, MaxMessages: 5000, ConcurrentWrites: 32,
		MaxLeasesPerIdentity: 1000, AgentServiceAccounts: []string{"trivet-system/trivet-agent"}, TokenReviewInterval: 10 * time.Second,
		Writes: class.Writes{Policy: class.WriteRelaxed, RefreshInterval: 5 * time.Minute},
		NodeHealth: leasesvc.NodeHealthConfig{
			Rules: nodehealth.Rules{
				GracePeriod: 50 * time.Second, StartupGracePeriod: time.Minute, LeastSilence: 20 * time.Second, SessionGrace: 20 * time.Second, UnreadyStart: 5 * time.Second, NormalRate: 0.1, PartialRate: 0.01,
				FullRate: 0.1, LargeZoneSize: 50, UnhealthyZoneThreshold: 0.55, ExcludeLabels: []string{"node.kubernetes.io/exclude-disruption"},
			},
			ConcurrentWrites: 16,
		},
	}
	got := leasesvc.DefaultConfig()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if problems := got.Validate(); problems != nil {
		t.Errorf("the defaults are refused: %v", problems)
	}
}

func TestRegisterFlags_ChangesTheNodeClass(t *testing.T) {
	t.Parallel()
	cfg := leasesvc.DefaultConfig()
	flags := pflag.NewFlagSet("leasesvc", pflag.ContinueOnError)
	cfg.RegisterFlags(flags)
	err := flags.Parse([]string{
		"--heartbeat-interval=1s", "--heartbeat-suspect-after=3", "--heartbeat-grace-period=8s", "--lease-renew-interval=2s", "--lease-duration=9s", "--expired-session-retention=3m",
		"--shards=3", "--max-sessions=7", "--max-registrations-per-second=11", "--max-messages-per-second=13", "--concurrent-lease-writes=5",
		"--max-leases-per-identity=17", "--agent-service-accounts=a/b,c/d", "--token-review-interval=19s",
		"--write-policy=on-change", "--lease-refresh-interval=1m",
		"--node-monitor-grace-period=4s", "--node-startup-grace-period=6s", "--node-eviction-rate=1", "--secondary-node-eviction-rate=2",
		"--full-disruption-node-eviction-rate=3", "--large-cluster-size-threshold=8", "--unhealthy-zone-threshold=0.7",
		"--disruption-exclude-labels=a,example.org/b", "--concurrent-node-writes=9",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := leasesvc.Config{
		Classes: []class.Class{{
			Name: "node", Namespace: "kube-node-lease", HeartbeatInterval: time.Second, SuspectAfter: 3, Grace: 8 * time.Second,
			RenewInterval: 2 * time.Second, LeaseDuration: 9 * time.Second, Retention: 3 * time.Minute, OwnedByNode: true,
			HolderRule: class.HolderRule{Type: class.RuleNode},
		}},
		Shards: 3, MaxSessions: 7, MaxRegistrations: 11, MaxMessages: 13, ConcurrentWrites: 5,
		MaxLeasesPerIdentity: 17, AgentServiceAccounts: []string{"a/b", "c/d"}, TokenReviewInterval: 19 * time.Second,
		Writes: class.Writes{Policy: class.WriteOnChange, RefreshInterval: time.Minute},
		NodeHealth: leasesvc.NodeHealthConfig{
			Rules: nodehealth.Rules{
				GracePeriod: 4 * time.Second, StartupGracePeriod: 6 * time.Second, LeastSilence: 20 * time.Second, SessionGrace: 20 * time.Second, UnreadyStart: 5 * time.Second, NormalRate: 1, PartialRate: 2,
				FullRate: 3, LargeZoneSize: 8, UnhealthyZoneThreshold: 0.7, ExcludeLabels: []string{"a", "example.org/b"},
			},
			ConcurrentWrites: 9,
		},
	}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestValidate_NamesEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	cfg := leasesvc.Config{
		Classes: []class.Class{
			{Name: "node", Namespace: "a", HeartbeatInterval: 0, RenewInterval: time.Minute, LeaseDuration: 1500 * time.Millisecond, Retention: -1},
			{Name: "node", Namespace: "B", HeartbeatInterval: 20 * time.Second, SuspectAfter: 2, Grace: 50 * time.Second, RenewInterval: time.Second, LeaseDuration: 40 * time.Second},
		},
		FurtherClasses:       []class.Class{{Name: "agent", Namespace: "agents", Retention: -1, HolderRule: class.HolderRule{Type: "node"}}},
		AgentServiceAccounts: []string{"agent"},
		Writes:               class.Writes{Policy: "lazy", RefreshInterval: time.Second},
		NodeHealth: leasesvc.NodeHealthConfig{Rules: nodehealth.Rules{
			NormalRate: math.NaN(), PartialRate: -1, FullRate: 1e6, LargeZoneSize: -1,
			UnhealthyZoneThreshold: 1.5, ExcludeLabels: []string{"no label"},
		}},
	}
	text := errors.Join(cfg.Validate()...).Error()
	for _, want := range []string{
		"--heartbeat-interval is 0s", "--lease-duration is 1.5s", "--lease-renew-interval is 1m0s", "--expired-session-retention",
		`namespace "B"`, "another class has the name or the namespace", "longer than the 50s", "--heartbeat-suspect-after is 0",
		"must not be shorter than the 50s of --heartbeat-grace-period", `--classes: heartbeatInterval of "agent" is 0s`,
		`--classes: suspectAfter of "agent" is 0`, `--classes: grace of "agent"`, `--classes: renewInterval of "agent"`,
		`--classes: leaseDuration of "agent"`, `--classes: retention of "agent" is -1ns`, "--shards is 0", "--max-sessions is 0", "--max-registrations-per-second is 0", "--max-messages-per-second is 0", "--max-leases-per-identity is 0",
		`--agent-service-accounts: "agent"`, "--token-review-interval is 0s", `--classes: holderRule of "agent": type is "node"`,
		"--concurrent-lease-writes is 0",
		`--write-policy is "lazy", must be one of mirror, relaxed, on-change`, "--lease-refresh-interval is 1s",
		"--node-monitor-grace-period is 0s", "--node-startup-grace-period is 0s", "--node-eviction-rate is NaN",
		"--secondary-node-eviction-rate is -1", "--full-disruption-node-eviction-rate is 1e+06", "--large-cluster-size-threshold is -1",
		"--unhealthy-zone-threshold is 1.5", "--disruption-exclude-labels: \"no label\"", "--concurrent-node-writes is 0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

func TestClassesFlag_ParsesAList(t *testing.T) {
	t.Parallel()
	cfg := leasesvc.DefaultConfig()
	flags := pflag.NewFlagSet("leasesvc", pflag.ContinueOnError)
	cfg.RegisterFlags(flags)
	err := flags.Parse([]string{
		`--classes=[{"name":"sidecar","namespace":"sidecars","heartbeatInterval":"2s","suspectAfter":3,"grace":"9s","holderRule":{"type":"NameTemplate","nameTemplate":"{namespace}.{serviceaccount}"}},{"name":"rack","namespace":"racks","ownedByNode":true}]`,
		"--heartbeat-interval=4s", // after the list, and still applies to nodes
	})
	if err != nil {
		t.Fatal(err)
	}
	want := leasesvc.DefaultConfig()
	want.Classes[0].HeartbeatInterval = 4 * time.Second
	sidecar, rack := want.Classes[0], leasesvc.DefaultConfig().Classes[0]
	sidecar.Name, sidecar.Namespace, sidecar.HeartbeatInterval, sidecar.SuspectAfter = "sidecar", "sidecars", 2*time.Second, 3
	sidecar.Grace, sidecar.OwnedByNode = 9*time.Second, false
	rack.Name, rack.Namespace, rack.HolderRule = "rack", "racks", class.HolderRule{}
	sidecar.HolderRule = class.HolderRule{Type: class.RuleNameTemplate, NameTemplate: "{namespace}.{serviceaccount}"}
	want.FurtherClasses = []class.Class{sidecar, rack}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if problems := cfg.Validate(); problems != nil {
		t.Errorf("refused: %v", problems)
	}
	again := leasesvc.DefaultConfig()
	flags = pflag.NewFlagSet("leasesvc", pflag.ContinueOnError)
	var text string
	cfg.RegisterFlags(flags)
	text = flags.Lookup("classes").Value.String()
	flags = pflag.NewFlagSet("leasesvc", pflag.ContinueOnError)
	again.RegisterFlags(flags)
	if err := flags.Set("classes", text); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg.FurtherClasses, again.FurtherClasses); diff != "" {
		t.Errorf("the flag's text is parsed differently (-want +got):\n%s", diff)
	}
}

func TestClassesFlag_NamesTheMistake(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:                            "need a list of classes",
		`[{"name":"a","grade":"9s"}]`:   `unknown field "grade"`,
		`[{"name":"a","grace":"long"}]`: `invalid duration`,
		`[] []`:                         "nothing behind it",
	} {
		cfg := leasesvc.DefaultConfig()
		flags := pflag.NewFlagSet("leasesvc", pflag.ContinueOnError)
		cfg.RegisterFlags(flags)
		if err := flags.Set("classes", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that says %q", text, err, want)
		}
		if cfg.FurtherClasses != nil {
			t.Errorf("%s: left %v", text, cfg.FurtherClasses)
		}
	}
}

func TestNew_RejectsUnknownLoops(t *testing.T) {
	t.Parallel()
	_, err := leasesvc.New(leasesvc.DefaultConfig(), leasesvc.Deps{
		Kube: newKube(), Leadership: termtest.NewCandidate(member, 64), LoopSelection: []string{"nonsense"},
	})
	if err == nil || !strings.Contains(err.Error(), "nonsense") || !strings.Contains(err.Error(), leasesvc.WritebackLoop) {
		t.Errorf("error %v, want one that names the wrong loop and the right ones", err)
	}
	_, err = leasesvc.New(leasesvc.Config{}, leasesvc.Deps{Kube: newKube()})
	if err == nil {
		t.Error("an empty configuration is accepted")
	}
}

func TestNew_RejectsAnotherNumberOfShardsThanItsLeadership(t *testing.T) {
	t.Parallel()
	_, err := leasesvc.New(leasesvc.DefaultConfig(), leasesvc.Deps{Kube: newKube(), Leadership: termtest.NewCandidate(member, 1)})
	if err == nil || !strings.Contains(err.Error(), "--shards is 64") {
		t.Errorf("error %v, want one that names the flag", err)
	}
}

func TestLoops_AreTheDocumentedOnes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	var names []string
	for _, l := range f.service.Loops().Status() {
		names = append(names, l.Name)
	}
	if want := []string{"lease-orphans", "lease-writeback", "node-health", "sessions", "taint-eviction"}; !slices.Equal(names, want) {
		t.Errorf("loops %v, want %v", names, want)
	}
}

// A sum that overflows is a time in the past, and every holder would expire at once.
func TestValidate_RejectsTimesWhoseSumOverflows(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*class.Class){
		"--heartbeat-interval":        func(c *class.Class) { c.HeartbeatInterval = math.MaxInt64/2 - 1 },
		"--heartbeat-grace-period":    func(c *class.Class) { c.Grace = math.MaxInt64 },
		"--lease-renew-interval":      func(c *class.Class) { c.RenewInterval = math.MaxInt64 },
		"--lease-duration":            func(c *class.Class) { c.LeaseDuration = 100 * 365 * 24 * time.Hour },
		"--expired-session-retention": func(c *class.Class) { c.Retention = math.MaxInt64 },
	} {
		cfg := leasesvc.DefaultConfig()
		change(&cfg.Classes[0])
		if text := fmt.Sprint(errors.Join(cfg.Validate()...)); !strings.Contains(text, name+" is ") || !strings.Contains(text, "must be a year at most") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// Every loop of the service, also one that holds no work of most clusters, can be selected and
// excluded by its name.
func TestLoops_CanAllBeSelected(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	for _, l := range f.service.Loops().Status() {
		for _, selection := range [][]string{{"*", "-" + l.Name}, {"*", l.Name}} {
			_, err := leasesvc.New(leasesvc.DefaultConfig(), leasesvc.Deps{
				Kube: newKube(), Leadership: termtest.NewCandidate(member, 64), LoopSelection: selection, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Errorf("--loops=%s: %v", strings.Join(selection, ","), err)
			}
		}
	}
}
