package process

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/rpcserver"
)

func TestDefaultConfig_ProgramSetsItsRate(t *testing.T) {
	common := kubeconn.DefaultConfig()
	for _, c := range []struct {
		program Program
		want    kubeconn.Config
	}{
		{program: Program{}, want: common},
		{program: Program{KubeQPS: 5000, KubeBurst: 7000}, want: kubeconn.Config{QPS: 5000, Burst: 7000}},
		{program: Program{KubeBurst: 7000}, want: kubeconn.Config{QPS: common.QPS, Burst: 7000}},
	} {
		if got := DefaultConfig(c.program).Kube; got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

func TestAdvertised_CompletesTheFlagAndRefusesToGuess(t *testing.T) {
	for name, c := range map[string]struct{ flag, listener, want string }{
		"where it listens":            {flag: "", listener: "127.0.0.1:7601", want: "127.0.0.1:7601"},
		"host only":                   {flag: "10.1.2.3", listener: "0.0.0.0:7601", want: "10.1.2.3:7601"},
		"IPv6 host only":              {flag: "fd00::3", listener: "[::]:7601", want: "[fd00::3]:7601"},
		"host and port":               {flag: "lease.example:443", listener: "[::]:7601", want: "lease.example:443"},
		"everywhere, nothing is said": {flag: "", listener: "[::]:7601", want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := advertised(c.flag, address(t, c.listener))
			if got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("advertised = %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestAdvertisedBeside_UsesAdvertisedHostForUnspecifiedAddress(t *testing.T) {
	for name, c := range map[string]struct{ advertised, listener, want string }{
		"own host":   {advertised: "10.1.2.3:7601", listener: "127.0.0.1:7611", want: "127.0.0.1:7611"},
		"everywhere": {advertised: "10.1.2.3:7601", listener: "[::]:7611", want: "10.1.2.3:7611"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := advertisedBeside(c.advertised, address(t, c.listener)); got != c.want {
				t.Errorf("advertisedBeside = %q, want %q", got, c.want)
			}
		})
	}
}

func address(t *testing.T, text string) net.Addr {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestValidate_PlainAdminServerIsForLoopback(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": true, ":7611": false, "192.0.2.1:7611": false} {
		cfg := DefaultConfig(Program{})
		cfg.RPC.Listen, cfg.RPC.Insecure, cfg.Admin.Listen = "127.0.0.1:0", true, address
		refused := slices.ContainsFunc(cfg.Validate(Program{}), func(problem error) bool { return strings.HasPrefix(problem.Error(), "--admin-listen="+address) })
		if refused == want {
			t.Errorf("with --insecure and --admin-listen=%s: %v", address, cfg.Validate(Program{}))
		}
	}
}

func TestValidate_AlwaysAllowIsForLoopback(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": true, "localhost:7611": true, ":7611": false, "192.0.2.1:7611": false} {
		for mode, allows := range map[string]bool{rpcserver.AlwaysAllowMode: true, rpcserver.RBACMode: false} {
			cfg := DefaultConfig(Program{})
			cfg.RPC.Listen, cfg.RPC.Access.Mode, cfg.Admin.Listen = "127.0.0.1:0", mode, address
			refused := slices.ContainsFunc(cfg.Validate(Program{}), func(problem error) bool { return strings.HasPrefix(problem.Error(), "--admin-listen="+address) })
			if refused != (allows && !want) {
				t.Errorf("with --authorization-mode=%s and --admin-listen=%s: %v", mode, address, cfg.Validate(Program{}))
			}
		}
	}
}
