package up

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestOptions_Defaults(t *testing.T) {
	opts := DefaultOptions()
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	opts.RegisterFlags(fs)
	if err := fs.Parse(nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultOptions(), opts); diff != "" {
		t.Errorf("flags change the defaults (-want +got):\n%s", diff)
	}
	if problems := opts.Validate(); len(problems) != 0 {
		t.Errorf("the defaults are invalid: %v", problems)
	}
	if opts.Nodes != 20 || opts.Services != 10 || opts.Pods != 50 {
		t.Errorf("%d nodes, %d services, %d pods, want 20, 10, 50", opts.Nodes, opts.Services, opts.Pods)
	}
}

func TestValidate_ReturnsAllProblems(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*Options)
		want []string // the prefix of each problem
	}{
		"numbers": {
			func(o *Options) {
				o.Nodes, o.Services, o.Pods, o.Churn, o.ReadyTimeout, o.Fleet = -1, 5001, -1, -time.Second, 0, "some"
			},
			[]string{"--nodes", "--services", "--pods", "--churn", "--fleet", "--ready-timeout"},
		},
		"pods without a node":        {func(o *Options) { o.Nodes = 0 }, []string{"--pods"}},
		"pods without a Service":     {func(o *Options) { o.Services = 0 }, []string{"--pods"}},
		"etcd without its cluster":   {func(o *Options) { o.Etcd.Endpoints = []string{"http://10.0.0.1:2379"} }, []string{"--kubeconfig"}},
		"etcd files without cluster": {func(o *Options) { o.Etcd.CAFile = "ca.crt" }, []string{"--kubeconfig"}},
		"missing kubeconfig":         {func(o *Options) { o.Kubeconfig, o.Etcd.Endpoints = "/does/not/exist", nil }, []string{"--kubeconfig /does/not/exist", "--etcd-endpoints"}},
		"a demo without a fleet": {
			func(o *Options) { o.Demo, o.Fleet = true, "off" },
			[]string{"--demo"},
		},
		"a demo of an existing cluster": {
			func(o *Options) { o.Demo, o.Kubeconfig = true, "/kubeconfig" },
			[]string{"--demo", "--kubeconfig /kubeconfig"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := DefaultOptions()
			test.edit(&opts)
			problems := opts.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("problems %v, want %q", problems, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(problems[i].Error(), want) {
					t.Errorf("problem %d is %q, want one of %s", i, problems[i], want)
				}
			}
		})
	}
}
