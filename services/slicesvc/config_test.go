package slicesvc_test

import (
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

func TestDefaultConfig_HasUpstreamDefaults(t *testing.T) {
	t.Parallel()
	cfg := slicesvc.DefaultConfig()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.RegisterFlags(fs)
	got := map[string]string{}
	fs.VisitAll(func(flag *pflag.Flag) { got[flag.Name] = flag.DefValue })
	want := map[string]string{
		"shards":                  "64",
		"max-endpoints-per-slice": "100",
		"mirroring-concurrent-service-endpoint-syncs":  "5",
		"mirroring-endpointslice-updates-batch-period": "0s",
		"mirroring-max-endpoints-per-subset":           "1000",
		"mirroring-spill":                              "false",
		"concurrent-service-endpoint-syncs":            "5",
		"concurrent-service-syncs":                     "5", // the former name
		"endpointslice-updates-batch-period":           "0s",
		"managed-by":                                   "endpointslice-controller.k8s.io",
		"cleanup-selectorless":                         "false",
		"compaction":                                   "off",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
	if problems := cfg.Validate(); problems != nil {
		t.Errorf("the defaults are refused: %v", problems)
	}
}

// The former name of a flag still works, with a warning.
func TestRegisterFlags_FormerName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args   []string
		want   int
		warned bool
	}{
		"upstream's name":       {args: []string{"--concurrent-service-endpoint-syncs=7"}, want: 7},
		"the former name":       {args: []string{"--concurrent-service-syncs=8"}, want: 8, warned: true},
		"the former name later": {args: []string{"--concurrent-service-endpoint-syncs=7", "--concurrent-service-syncs=8"}, want: 7, warned: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := slicesvc.DefaultConfig()
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			var output strings.Builder
			fs.SetOutput(&output)
			cfg.RegisterFlags(fs)
			if err := fs.Parse(c.args); err != nil || cfg.ConcurrentServiceSyncs != c.want {
				t.Errorf("%d syncs and error %v, want %d", cfg.ConcurrentServiceSyncs, err, c.want)
			}
			if warned := strings.Contains(output.String(), "use --concurrent-service-endpoint-syncs"); warned != c.warned {
				t.Errorf("output is %q", output.String())
			}
			if flag := fs.Lookup("concurrent-service-endpoint-syncs"); !flag.Changed {
				t.Error("a later source of settings would replace the value")
			}
		})
	}
}

func TestValidate_NamesEveryProblem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  slicesvc.Config
		want []string
	}{
		"all at once": {
			cfg: slicesvc.Config{ManagedBy: "not a label"},
			want: []string{"--shards is 0", "--max-endpoints-per-slice is 0", "--concurrent-service-endpoint-syncs is 0", `--compaction is ""`,
				"--mirroring-concurrent-service-endpoint-syncs is 0", "--mirroring-max-endpoints-per-subset is 0", `--managed-by is "not a label"`},
		},
		"no such compaction": {
			cfg: func() slicesvc.Config {
				cfg := slicesvc.DefaultConfig()
				cfg.Compaction = "always"
				return cfg
			}(),
			want: []string{`--compaction is "always"`},
		},
		"above the bounds": {
			cfg: slicesvc.Config{
				Shards: 4097, MaxEndpointsPerSlice: 1001, ConcurrentServiceSyncs: 51, UpdatesBatchPeriod: 61 * time.Second, Compaction: slicesvc.CompactionIdle,
				Mirroring: slicesvc.Mirroring{ConcurrentSyncs: 51, MaxEndpointsPerSubset: 1001, UpdatesBatchPeriod: 61 * time.Second},
			},
			want: []string{
				"--shards is 4097", "--max-endpoints-per-slice is 1001", "--concurrent-service-endpoint-syncs is 51",
				"--endpointslice-updates-batch-period is 1m1s",
				"--mirroring-concurrent-service-endpoint-syncs is 51", "--mirroring-max-endpoints-per-subset is 1001",
				"--mirroring-endpointslice-updates-batch-period is 1m1s", "--managed-by is empty",
			},
		},
		"a negative period": {
			cfg: func() slicesvc.Config {
				cfg := slicesvc.DefaultConfig()
				cfg.UpdatesBatchPeriod = -1
				return cfg
			}(),
			want: []string{"--endpointslice-updates-batch-period is -1ns"},
		},
		"the bounds": {
			cfg: slicesvc.Config{
				Shards: 4096, MaxEndpointsPerSlice: 1000, ConcurrentServiceSyncs: 50, UpdatesBatchPeriod: time.Minute, ManagedBy: "x", Compaction: slicesvc.CompactionOff,
				Mirroring: slicesvc.Mirroring{ConcurrentSyncs: 50, MaxEndpointsPerSubset: 1000, UpdatesBatchPeriod: time.Minute, Spill: true},
			},
		},
		"the label of mirrored slices": {
			cfg: func() slicesvc.Config {
				cfg := slicesvc.DefaultConfig()
				cfg.ManagedBy = "endpointslicemirroring-controller.k8s.io"
				return cfg
			}(),
			want: []string{"--managed-by is \"endpointslicemirroring-controller.k8s.io\", which mirrored EndpointSlices have"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			problems := c.cfg.Validate()
			if len(problems) != len(c.want) {
				t.Fatalf("problems are %v, want %d", problems, len(c.want))
			}
			for i, want := range c.want {
				if !strings.HasPrefix(problems[i].Error(), want) {
					t.Errorf("problem %d is %q, want %q…", i, problems[i], want)
				}
			}
		})
	}
}

func TestNew_RejectsInvalidArguments(t *testing.T) {
	t.Parallel()
	if _, err := slicesvc.New(slicesvc.Config{}, slicesvc.Deps{}); err == nil {
		t.Error("an empty configuration is accepted")
	}
	deps := fakeDeps(t)
	deps.Leadership = termtest.NewCandidate(member(), 3)
	if _, err := slicesvc.New(slicesvc.DefaultConfig(), deps); err == nil || !strings.Contains(err.Error(), "--shards is 64") {
		t.Errorf("error is %v, want one about 64 and 3 shards", err)
	}
	deps = fakeDeps(t)
	deps.LoopSelection = []string{"nonsense"}
	if _, err := slicesvc.New(slicesvc.DefaultConfig(), deps); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error is %v, want one about the loop nonsense", err)
	}
}
