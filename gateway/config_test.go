package gateway_test

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/httpaccess"
)

func TestConfig_FlagsHaveTheDocumentedDefaults(t *testing.T) {
	cfg := gateway.DefaultConfig()
	flags := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	cfg.RegisterFlags(flags)

	got := map[string]string{}
	flags.VisitAll(func(flag *pflag.Flag) { got[flag.Name] = flag.DefValue })

	want := map[string]string{"http-listen": "127.0.0.1:7680", "backend-timeout": "1s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if problems := cfg.Validate(); len(problems) != 0 {
		t.Errorf("the defaults are invalid: %v", problems)
	}
}

func TestConfig_ValidateTellsAllProblems(t *testing.T) {
	tests := []struct {
		name     string
		cfg      gateway.Config
		problems []string
	}{
		{name: "no HTTP", cfg: gateway.Config{BackendTimeout: time.Second}},
		{name: "all interfaces", cfg: gateway.Config{HTTPListen: ":7680", BackendTimeout: time.Second}},
		{name: "IPv6", cfg: gateway.Config{HTTPListen: "[::1]:0", BackendTimeout: time.Second}},
		{
			name: "no port, no timeout",
			cfg:  gateway.Config{HTTPListen: "localhost"},
			problems: []string{
				`--http-listen="localhost": must be host:port, for example "127.0.0.1:7680", or empty: address localhost: missing port in address`,
				"--backend-timeout=0s: must be between 50ms and 5s",
			},
		},
		{
			name:     "port out of range",
			cfg:      gateway.Config{HTTPListen: "127.0.0.1:76800", BackendTimeout: time.Minute},
			problems: []string{`--http-listen="127.0.0.1:76800": port "76800" is not a number from 0 to 65535`, "--backend-timeout=1m0s: must be between 50ms and 5s"},
		},
		{
			name:     "a host name",
			cfg:      gateway.Config{HTTPListen: "example.org:80", BackendTimeout: time.Second},
			problems: []string{`--http-listen="example.org:80": host "example.org" is not an IP address of this machine`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, problem := range test.cfg.Validate() {
				got = append(got, problem.Error())
			}
			if diff := cmp.Diff(test.problems, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// A page with a shorter timeout than the gateway reconnects forever while one replica hangs.
func TestConfig_PageWaitsLongerThanTheTimeout(t *testing.T) {
	limit := inScript(t, "assets/hub.js", `const silenceLimit = (\d+);`)
	interval := inScript(t, "assets/main.js", `\?interval=(\d+s)`)
	silence, err := time.ParseDuration(limit + "ms")
	if err != nil {
		t.Fatal(err)
	}
	pause, err := time.ParseDuration(interval)
	if err != nil {
		t.Fatal(err)
	}
	cfg := gateway.Config{BackendTimeout: silence - pause}
	if len(cfg.Validate()) == 0 {
		t.Errorf("--backend-timeout=%s is accepted, and the page gives up after %s without a status", cfg.BackendTimeout, silence)
	}
}

// inScript returns a value in a script of the page.
func inScript(t *testing.T, name, pattern string) string {
	t.Helper()
	script, err := fs.ReadFile(web.Files(), name)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(pattern).FindSubmatch(script)
	if found == nil {
		t.Fatalf("%s does not say %s", name, pattern)
	}
	return string(found[1])
}

func TestNew_UnknownLoopIsAnError(t *testing.T) {
	wrong := deps(newDirectory())
	wrong.LoopSelection = []string{"conections"}

	if _, err := gateway.New(gateway.DefaultConfig(), wrong); err == nil {
		t.Error("New() accepts the unknown loop \"conections\"")
	}
}

func TestNew_PlainHTTPIsForLoopback(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": true, "localhost:0": true, "[::1]:0": true, "": true, ":7680": false, "0.0.0.0:7680": false, "192.0.2.1:7680": false} {
		_, err := gateway.New(gateway.Config{HTTPListen: address, BackendTimeout: time.Second}, deps(newDirectory()))
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "--http-listen="+address) {
			t.Errorf("New() with plain HTTP on %q = %v", address, err)
		}
	}
}

func TestNew_WithoutAuthorizationHTTPIsForLoopback(t *testing.T) {
	for address, loopback := range map[string]bool{"127.0.0.1:0": true, "localhost:0": true, "": true, ":7680": false, "192.0.2.1:7680": false} {
		for _, allows := range []bool{true, false} {
			with := deps(newDirectory())
			with.Access = httpaccess.New(httpaccess.Config{
				Authenticator: authn.New(authn.Config{}), Authorizer: authz.New(nil), AlwaysAllow: allows,
			})
			_, err := gateway.New(gateway.Config{HTTPListen: address, BackendTimeout: time.Second}, with)
			if (err == nil) != (loopback || !allows) || err != nil && !strings.Contains(err.Error(), "--http-listen="+address+": with --authorization-mode=AlwaysAllow") {
				t.Errorf("New() on %q, with everything allowed %t: %v", address, allows, err)
			}
		}
	}
}
