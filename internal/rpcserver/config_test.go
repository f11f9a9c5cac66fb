package rpcserver

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

func TestDefaultConfig_IsAsDocumented(t *testing.T) {
	want := Config{
		Listen:               "127.0.0.1:7601",
		Access:               AccessConfig{TokenAudiences: []string{"trivet"}, GatewayGroup: "trivet:gateways", ServerGroup: "trivet:servers", Mode: "RBAC"},
		Connections:          connlimit.DefaultConfig(),
		MaxRecvBytes:         1048576,
		MaxHeaderBytes:       8192,
		MaxConcurrentStreams: 100,
		MaxConnectionAge:     30 * time.Minute,
		DrainTimeout:         10 * time.Second,
	}
	if diff := cmp.Diff(want, DefaultConfig("127.0.0.1:7601")); diff != "" {
		t.Errorf("defaults differ (-want +got):\n%s", diff)
	}
}

func TestConfig_FlagsSetTheirFields(t *testing.T) {
	cfg := DefaultConfig("127.0.0.1:7601")
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cfg.RegisterFlags(fs)
	if err := fs.Parse([]string{
		"--listen=127.0.0.1:1", "--tls-cert-file=c", "--tls-key-file=k", "--client-ca-file=a", "--peer-ca-file=p", "--insecure",
		"--token-audiences=u,v", "--gateway-group=g", "--server-group=s", "--authorization-mode=AlwaysAllow",
		"--max-recv-bytes=2", "--max-header-bytes=3", "--max-concurrent-streams=4", "--max-connection-age=5s", "--drain-timeout=6s",
	}); err != nil {
		t.Fatal(err)
	}
	want := Config{
		Listen: "127.0.0.1:1", TLS: identity.Files{CertFile: "c", KeyFile: "k", CAFile: "a"}, PeerCAFile: "p", Insecure: true,
		Access:       AccessConfig{TokenAudiences: []string{"u", "v"}, GatewayGroup: "g", ServerGroup: "s", Mode: AlwaysAllowMode},
		Connections:  connlimit.DefaultConfig(),
		MaxRecvBytes: 2, MaxHeaderBytes: 3, MaxConcurrentStreams: 4, MaxConnectionAge: 5 * time.Second, DrainTimeout: 6 * time.Second,
	}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("configuration differs (-want +got):\n%s", diff)
	}
}

func TestValidate_InsecureNeedsLoopback(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:7601":         true,
		"127.8.9.1:0":            true,
		"[::1]:7601":             true,
		"localhost:7601":         true,
		"[::ffff:127.0.0.1]:1":   true,
		":7601":                  false,
		"0.0.0.0:7601":           false,
		"[::]:7601":              false,
		"10.0.0.7:7601":          false,
		"localhost.evil.com:1":   false,
		"127.0.0.1.example.org:": false,
		"example.org:7601":       false,
	} {
		t.Run(listen, func(t *testing.T) {
			cfg := DefaultConfig(listen)
			cfg.Insecure = true
			if problems := cfg.Validate(); (len(problems) == 0) != ok {
				t.Errorf("Validate() = %v, want acceptance: %t", problems, ok)
			}
		})
	}
}

func TestValidate_AllProblemsAtOnceWithTheirFlags(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	missing := authority.Files(t, "server", authority)
	missing.KeyFile = filepath.Join(t.TempDir(), "absent.key")
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"nothing given": {cfg: Config{MaxHeaderBytes: -1, MaxConnectionAge: -1}, want: []string{
			`--listen=""`, "--tls-cert-file", "--tls-key-file", "--client-ca-file",
			"--token-audiences", "--authorization-mode", "--max-recv-bytes=0", "--max-header-bytes=-1", "--max-concurrent-streams=0", "--max-connection-age=-1ns", "--drain-timeout=0s",
		}},
		"no port":         {cfg: with(DefaultConfig("127.0.0.1"), func(c *Config) { c.Insecure = true }), want: []string{"must be host:port"}},
		"port of letters": {cfg: with(DefaultConfig("127.0.0.1:grpc"), func(c *Config) { c.Insecure = true }), want: []string{`port "grpc"`}},
		"port too high":   {cfg: with(DefaultConfig("127.0.0.1:65536"), func(c *Config) { c.Insecure = true }), want: []string{`port "65536"`}},
		"allowed everything beyond loopback": {cfg: with(DefaultConfig("10.0.0.7:1"), func(c *Config) {
			c.TLS, c.Access.Mode = authority.Files(t, "server", authority), AlwaysAllowMode
		}), want: []string{"--authorization-mode=AlwaysAllow is accepted only"}},
		"one group for two roles": {cfg: with(DefaultConfig("127.0.0.1:1"), func(c *Config) { c.Insecure, c.Access.GatewayGroup = true, "trivet:servers" }), want: []string{"--gateway-group and --server-group"}},
		"nodes as gateways":       {cfg: with(DefaultConfig("127.0.0.1:1"), func(c *Config) { c.Insecure, c.Access.GatewayGroup = true, "system:nodes" }), want: []string{"group of all nodes"}},
		"one file forgotten":      {cfg: with(DefaultConfig("127.0.0.1:1"), func(c *Config) { c.TLS = identity.Files{CertFile: "c", KeyFile: "k"} }), want: []string{"--client-ca-file is required"}},
		"file missing":            {cfg: with(DefaultConfig("127.0.0.1:1"), func(c *Config) { c.TLS = missing }), want: []string{"absent.key"}},
		"insecure with peers":     {cfg: with(DefaultConfig("127.0.0.1:1"), func(c *Config) { c.Insecure = true; c.PeerCAFile = "p" }), want: []string{"--insecure contradicts"}},
		"absent peers": {cfg: with(DefaultConfig("10.0.0.7:1"), func(c *Config) {
			c.TLS = authority.Files(t, "server", authority)
			c.PeerCAFile = filepath.Join(t.TempDir(), "absent.crt")
		}), want: []string{"--peer-ca-file"}},
		"insecure with files": {cfg: with(DefaultConfig("127.0.0.1:1"), func(c *Config) { c.Insecure = true; c.TLS.CertFile = "c" }), want: []string{"--insecure contradicts"}},
	} {
		t.Run(name, func(t *testing.T) {
			problems := c.cfg.Validate()
			if len(problems) != len(c.want) {
				t.Fatalf("Validate() = %q, want %d problems", problems, len(c.want))
			}
			for i, want := range c.want {
				if !strings.Contains(problems[i].Error(), want) {
					t.Errorf("problem %d is %q, want one that says %q", i, problems[i], want)
				}
			}
		})
	}
}

func TestValidate_GoodFilesAreAccepted(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	cfg := DefaultConfig(":7601")
	cfg.TLS = authority.Files(t, "server", authority)
	if problems := cfg.Validate(); len(problems) > 0 {
		t.Errorf("Validate() = %v, want no problem", problems)
	}
}

func TestListen_ErrorNamesAddressInUse(t *testing.T) {
	first, err := Listen(DefaultConfig("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	address := first.Addr().String()
	second, err := Listen(DefaultConfig(address))
	if err == nil {
		second.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "--listen=") || !strings.Contains(err.Error(), address) {
		t.Errorf("Listen() = %v, want an error with flag and address", err)
	}
}

func TestNew_OneRegistryTakesOneServer(t *testing.T) {
	cfg := with(DefaultConfig("127.0.0.1:0"), func(c *Config) { c.Insecure = true })
	deps := Deps{Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
	if _, err := New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, deps); err == nil {
		t.Error("the second New() with the same registry = nil error, want one")
	}
}

func with(cfg Config, change func(*Config)) Config {
	change(&cfg)
	return cfg
}

// Servers of Trivet may have authorities of their own, apart from those of clients.
func TestPeerFiles_PeersAuthorityElseThatOfClients(t *testing.T) {
	cfg := Config{TLS: identity.Files{CertFile: "c", KeyFile: "k", CAFile: "clients"}}
	if diff := cmp.Diff(cfg.TLS, cfg.PeerFiles()); diff != "" {
		t.Errorf("without --peer-ca-file (-want +got):\n%s", diff)
	}
	cfg.PeerCAFile = "peers"
	if diff := cmp.Diff(identity.Files{CertFile: "c", KeyFile: "k", CAFile: "peers"}, cfg.PeerFiles()); diff != "" {
		t.Errorf("with --peer-ca-file (-want +got):\n%s", diff)
	}
}
