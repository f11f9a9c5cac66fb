package bootstrapsvc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

func TestConfig_DefaultsOfFlags(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	flags := pflag.NewFlagSet("bootstrapsvc", pflag.ContinueOnError)
	cfg.RegisterFlags(flags)
	got := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) { got[f.Name] = f.DefValue })
	want := map[string]string{
		"apiserver-url": "", "apiserver-port": "0", "apiserver-advertise-address": "",
		"service-cluster-ip-range": "", "kubernetes-service-node-port": "0",
		"kubernetes-service-extra-ports": "[]", "dual-stack-endpoints": "false",
		"probe-interval": "1s", "probe-timeout": "3s", "probe-failures": "3",
		"endpoint-reconciler-type": "lease", "apiserver-count": "1", "static-apiserver-address": "", "static-apiserver-port": "0",
		"adopt-master-leases": "false", "shared-apiserver-address": "false", "min-ready-apiservers": "1",
		"unready-delay": "8s", "keep-last-address": "false", "keep-ready-address": "false", "etcd-prefix": "/registry",
		"auto-repair": "safe", "finding-history": "1000", "repair-history": "100", "service-node-port-range": "", "leak-grace": "1m5s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
	if problems := cfg.Validate(); len(problems) != 0 {
		t.Errorf("defaults are rejected: %v", problems)
	}
}

func TestConfig_EveryProblemIsReported(t *testing.T) {
	t.Parallel()
	cfg := Config{
		APIServerURL: "http://127.0.0.1:6443", APIServerPort: 65536, AdvertiseAddress: "127.0.0.1",
		ServiceClusterIPRange: "10.0.0.0/33", NodePort: -1, ExtraPorts: []string{"konnectivity"},
		ProbeInterval: time.Millisecond, ProbeTimeout: 0, ProbeFailures: 0,
		Endpoints: EndpointsConfig{
			Reconciler: "lease-count", StaticAddress: "192.0.2.7", StaticPort: -1, MinReady: -1, UnreadyDelay: -time.Second,
		},
		Audit: AuditConfig{
			AutoRepair: "LEAKED,all", FindingHistory: 0, RepairHistory: 10_001, NodePortRange: "32767-30000", LeakGrace: 30 * time.Second,
		},
	}
	want := []string{
		"--apiserver-url", "--apiserver-port", "--apiserver-advertise-address", "--service-cluster-ip-range",
		"--kubernetes-service-node-port", "--kubernetes-service-extra-ports", "--probe-interval", "--probe-timeout", "--probe-failures",
		"--endpoint-reconciler-type", "--apiserver-count", "--static-apiserver-address", "--static-apiserver-port",
		"--min-ready-apiservers", "--unready-delay", "--etcd-prefix",
		"--auto-repair", "--finding-history", "--repair-history", "--service-node-port-range", "--leak-grace",
	}
	var got []string
	for _, problem := range cfg.Validate() {
		flag, _, _ := strings.Cut(problem.Error(), ":")
		got = append(got, flag)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags with problems (-want +got):\n%s", diff)
	}
}

func TestConfig_Values(t *testing.T) {
	cases := map[string]struct {
		edit func(*Config)
		want string // part of the only problem; empty: none
	}{
		"a URL":                     {edit: func(c *Config) { c.APIServerURL = "https://127.0.0.1:6443" }},
		"a URL with a password":     {edit: func(c *Config) { c.APIServerURL = "https://me:secret@host" }, want: "not a URL like"},
		"an invalid URL":            {edit: func(c *Config) { c.APIServerURL = "https://%zz" }, want: "--apiserver-url"},
		"both families":             {edit: func(c *Config) { c.ServiceClusterIPRange = "10.0.0.0/16,fd00::/108" }},
		"one family twice":          {edit: func(c *Config) { c.ServiceClusterIPRange = "10.0.0.0/16,10.1.0.0/16" }, want: "one IPv4 and one IPv6"},
		"three ranges":              {edit: func(c *Config) { c.ServiceClusterIPRange = "10.0.0.0/16,fd00::/108,fd01::/108" }, want: "want one range"},
		"a range of one address":    {edit: func(c *Config) { c.ServiceClusterIPRange = "10.0.0.1/32" }, want: "too small"},
		"a mapped range":            {edit: func(c *Config) { c.ServiceClusterIPRange = "::ffff:10.0.0.0/112" }, want: "IPv4 range in IPv6 notation"},
		"an address with a zone":    {edit: func(c *Config) { c.AdvertiseAddress = "2001:db8::1%eth0" }, want: "zone"},
		"an address":                {edit: func(c *Config) { c.AdvertiseAddress = "10.1.0.1" }},
		"a name for an address":     {edit: func(c *Config) { c.AdvertiseAddress = "host" }, want: "not an IP address"},
		"an unspecified address":    {edit: func(c *Config) { c.AdvertiseAddress = "::" }, want: "unspecified"},
		"a link-local address":      {edit: func(c *Config) { c.AdvertiseAddress = "fe80::1" }, want: "link-local"},
		"a mapped loopback address": {edit: func(c *Config) { c.AdvertiseAddress = "::ffff:127.0.0.1" }, want: "loopback"},
		"address and range of different families": {
			edit: func(c *Config) { c.AdvertiseAddress, c.ServiceClusterIPRange = "10.1.0.1", "fd00::/108" },
			want: "is IPv4, but the primary service range",
		},
		"an address of each family": {edit: func(c *Config) {
			c.DualStackEndpoints, c.AdvertiseAddress, c.ServiceClusterIPRange = true, "10.1.0.1, fd00:1::1", "10.0.0.0/16,fd00::/108"
		}},
		"two addresses of one family": {
			edit: func(c *Config) { c.DualStackEndpoints, c.AdvertiseAddress = true, "10.1.0.1,10.1.0.2" }, want: "of one family",
		},
		"two addresses without dual stack": {
			edit: func(c *Config) { c.AdvertiseAddress = "10.1.0.1,fd00:1::1" }, want: "needs --dual-stack-endpoints",
		},
		"kube-apiserver's name of a reconciler": {edit: func(c *Config) { c.Endpoints.Reconciler = "master-count" }},
		"a static name":                         {edit: func(c *Config) { c.Endpoints.Reconciler, c.Endpoints.StaticAddress = "static", "api.example." }},
		"static without an address":             {edit: func(c *Config) { c.Endpoints.Reconciler = "static" }, want: "is needed with"},
		"a static URL": {
			edit: func(c *Config) { c.Endpoints.Reconciler, c.Endpoints.StaticAddress = "static", "https://api.example" }, want: "neither an IP address nor",
		},
		"a static loopback address": {
			edit: func(c *Config) { c.Endpoints.Reconciler, c.Endpoints.StaticAddress = "static", "127.0.0.1" }, want: "loopback",
		},
		"ports as a sum":      {edit: func(c *Config) { c.Audit.NodePortRange = "30000+2767" }},
		"one port":            {edit: func(c *Config) { c.Audit.NodePortRange = "30000" }},
		"ports behind 65,535": {edit: func(c *Config) { c.Audit.NodePortRange = "30000+40000" }, want: "not a range of ports"},
		"an address of a Service": {
			edit: func(c *Config) { c.AdvertiseAddress, c.ServiceClusterIPRange = "10.0.0.1", "10.0.0.0/16" },
			want: "lies in the service range",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			test.edit(&cfg)
			problems := cfg.Validate()
			switch {
			case test.want == "" && len(problems) != 0:
				t.Errorf("problems = %v, want none", problems)
			case test.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), test.want)):
				t.Errorf("problems = %v, want one with %q", problems, test.want)
			}
			for _, problem := range problems {
				if strings.Contains(problem.Error(), "secret") {
					t.Errorf("the problem contains the password: %v", problem)
				}
			}
		})
	}
}

func TestFindLocalServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	cases := map[string]struct {
		host    string
		edit    func(*Config)
		sidecar bool
		want    string // URL, port and address
		err     string
	}{
		"from the kubeconfig": {
			host: "https://10.1.0.1:6443", sidecar: true, want: "https://10.1.0.1:6443 6443 10.1.0.1",
		},
		"flags have precedence": {
			host: "https://10.1.0.1:6443", sidecar: true, want: "https://127.0.0.1:8443 7443 10.1.0.2",
			edit: func(c *Config) {
				c.APIServerURL, c.APIServerPort, c.AdvertiseAddress = "https://127.0.0.1:8443", 7443, "10.1.0.2"
			},
		},
		"the default port of https": {
			host: "https://10.1.0.1", sidecar: true, want: "https://10.1.0.1 443 10.1.0.1",
		},
		"a replica without an apiserver needs no address": {
			host: "https://127.0.0.1:6443", want: "https://127.0.0.1:6443 6443 invalid IP",
		},
		"the service account of a pod leads to any server": {
			host: "https://10.0.0.1:443", sidecar: true, err: "--apiserver-url",
		},
		"the service account of a pod gives no port": {
			host: "https://10.0.0.1:443", err: "--apiserver-port",
		},
		"the service account of a pod with a configured port": {
			host: "https://10.0.0.1:443", edit: func(c *Config) { c.APIServerPort = 6443 },
			want: "https://10.0.0.1:443 6443 invalid IP",
		},
		"an address found of the wrong family": {
			host: "https://10.1.0.1:6443", sidecar: true, err: "IPv6",
			edit: func(c *Config) {
				c.AdvertiseAddress, c.ServiceClusterIPRange = "10.1.0.1", "fd00::/108"
			},
		},
		"port 0": {
			host: "https://10.1.0.1:0", sidecar: true, err: "no usable port",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			if test.edit != nil {
				test.edit(&cfg)
			}
			found, err := findLocalServer(cfg, &rest.Config{Host: test.host}, test.sidecar)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error = %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s %d %s", found.url, found.port, found.address.Primary)
			if got != test.want {
				t.Errorf("found %s, want %s", got, test.want)
			}
		})
	}
}

func TestNew_UnknownLoopIsRejected(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.AdvertiseAddress = "10.1.0.1"
	_, err := New(cfg, Deps{KubeConfig: &rest.Config{Host: "https://10.1.0.1:6443"}, LoopSelection: []string{"*", "-apiserver-prob"}})
	if err == nil || !strings.Contains(err.Error(), "apiserver-prob") {
		t.Errorf("error = %v, want one that names the loop", err)
	}
}

func TestConfig_ExtraPorts(t *testing.T) {
	t.Parallel()
	want := []baseline.Port{
		{Name: "konnectivity", Protocol: "TCP", Port: 8132, TargetPort: 8091},
		{Name: "dns", Protocol: "UDP", Port: 53, TargetPort: 53},
		{Name: "dns-tcp", Protocol: "TCP", Port: 53, TargetPort: 5353},
	}
	got, err := parseExtraPorts([]string{"konnectivity:8132:8091", "dns:53/UDP", "dns-tcp:53/TCP:5353"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func TestConfig_InvalidExtraPorts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"8132":                         "want name:port",
		"a:1:2:3":                      "want name:port",
		"K8:1":                         "not the name of a port",
		":1":                           "not the name of a port",
		"a:0":                          "not a port",
		"a:65536":                      "not a port",
		"a:-1":                         "not a port",
		"a:http":                       "not a port",
		"a:1:0":                        "not a port",
		"a:1/tcp":                      "must be TCP",
		"a:1/":                         "must be TCP",
		"https:8443":                   "own port",
		"more:443":                     "own port",
		"a:1,a:2":                      "given twice",
		"a:1,b:1/TCP":                  "given twice",
		strings.Repeat("n", 64) + ":1": "not the name of a port",
	} {
		if _, err := parseExtraPorts(strings.Split(text, ",")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one with %q", text, err, want)
		}
	}
}

func TestAudit_RepairsOnlyTheFindingsWithTheCodes(t *testing.T) {
	t.Parallel()
	for given, want := range map[AutoRepair]allocationcontroller.Config{
		AutoRepairSafe:          {AutoRepair: true},
		AutoRepairOff:           {},
		"NOT_ALLOCATED, LEAKED": {AutoRepair: true, AutoRepairCodes: []allocation.Code{allocation.NotAllocated, allocation.Leaked}},
	} {
		cfg := defaultAudit()
		cfg.AutoRepair, cfg.LeakGrace = given, 2*time.Minute
		got, err := cfg.controller()
		if err != nil || got.AutoRepair != want.AutoRepair || !slices.Equal(got.AutoRepairCodes, want.AutoRepairCodes) {
			t.Errorf("%s: %+v, %v, want %+v", given, got, err, want)
		}
		if got.GracePeriods.Unused != 2*time.Minute || got.GracePeriods.Missing == 0 {
			t.Errorf("%s: grace periods %+v", given, got.GracePeriods)
		}
	}
}
