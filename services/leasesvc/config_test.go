package leasesvc_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

func TestDefaultConfig_IsWhatTheDocumentationSays(t *testing.T) {
	want := leasesvc.Config{
		Classes: []leasesvc.Class{{
			Name: "node", Namespace: "kube-node-lease", HeartbeatInterval: 10 * time.Second, RenewInterval: 10 * time.Second,
			LeaseDuration: 40 * time.Second, Retention: time.Hour,
		}},
		Shards: 64, MaxSessions: 200_000, ConcurrentWrites: 32,
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
	cfg := leasesvc.DefaultConfig()
	flags := pflag.NewFlagSet("leasesvc", pflag.ContinueOnError)
	cfg.RegisterFlags(flags)
	err := flags.Parse([]string{
		"--heartbeat-interval=1s", "--lease-renew-interval=2s", "--lease-duration=9s", "--expired-session-retention=3m",
		"--shards=3", "--max-sessions=7", "--concurrent-lease-writes=5",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := leasesvc.Config{
		Classes: []leasesvc.Class{{
			Name: "node", Namespace: "kube-node-lease", HeartbeatInterval: time.Second, RenewInterval: 2 * time.Second,
			LeaseDuration: 9 * time.Second, Retention: 3 * time.Minute,
		}},
		Shards: 3, MaxSessions: 7, ConcurrentWrites: 5,
	}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestValidate_NamesEveryProblemAtOnce(t *testing.T) {
	cfg := leasesvc.Config{
		Classes: []leasesvc.Class{
			{Name: "node", Namespace: "a", HeartbeatInterval: 0, RenewInterval: time.Minute, LeaseDuration: 1500 * time.Millisecond, Retention: -1},
			{Name: "node", Namespace: "B", HeartbeatInterval: 20 * time.Second, RenewInterval: time.Second, LeaseDuration: 40 * time.Second},
		},
	}
	text := errors.Join(cfg.Validate()...).Error()
	for _, want := range []string{
		"--heartbeat-interval is 0s", "--lease-duration is 1.5s", "--lease-renew-interval is 1m0s", "--expired-session-retention",
		`namespace "B"`, "name and namespace must be its own", "longer than the 50s", "--shards is 0", "--max-sessions is 0", "--concurrent-lease-writes is 0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

func TestNew_RefusesUnknownLoops(t *testing.T) {
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

func TestNew_RefusesAnotherDivisionThanItsLeaderships(t *testing.T) {
	_, err := leasesvc.New(leasesvc.DefaultConfig(), leasesvc.Deps{Kube: newKube(), Leadership: termtest.NewCandidate(member, 1)})
	if err == nil || !strings.Contains(err.Error(), "--shards is 64") {
		t.Errorf("error %v, want one that names the flag", err)
	}
}

func TestLoops_AreTheDocumentedOnes(t *testing.T) {
	f := newFixture(t, setup{})
	var names []string
	for _, l := range f.service.Loops().Status() {
		names = append(names, l.Name)
	}
	if want := []string{"lease-writeback", "sessions"}; !slices.Equal(names, want) {
		t.Errorf("loops %v, want %v", names, want)
	}
}
