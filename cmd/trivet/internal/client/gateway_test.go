package client_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/internal/identity"
)

// parsed returns the gateway of a command line and an environment.
func parsed(t *testing.T, env map[string]string, args ...string) client.Gateway {
	t.Helper()
	var cfg client.Gateway
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cfg.RegisterFlags(flags, func(name string) string { return env[name] })
	if err := flags.Parse(args); err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	return cfg
}

func TestGateway_FlagsOverrideTheEnvironment(t *testing.T) {
	env := map[string]string{"TRIVET_SERVER": "gateway:7600", "TRIVET_CA_FILE": "ca.pem"}
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want client.Gateway
	}{
		{name: "defaults", want: client.Gateway{Server: "127.0.0.1:7600"}},
		{name: "environment", env: env, want: client.Gateway{Server: "gateway:7600", TLS: identity.Files{CAFile: "ca.pem"}}},
		{
			name: "flags", env: env, args: []string{"--server=other:1", "--ca-file=", "--cert-file=c", "--key-file=k"},
			want: client.Gateway{Server: "other:1", TLS: identity.Files{CertFile: "c", KeyFile: "k"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parsed(t, test.env, test.args...)); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGateway_ValidateReturnsAllProblems(t *testing.T) {
	tests := []struct {
		name     string
		cfg      client.Gateway
		problems []string
	}{
		{name: "a name and a port", cfg: client.Gateway{Server: "gateway.trivet.svc:7600"}},
		{
			name: "no port, half a certificate",
			cfg:  client.Gateway{Server: "gateway", TLS: identity.Files{CertFile: "c"}},
			problems: []string{
				`--server="gateway": must be host:port, for example "127.0.0.1:7600"`,
				"--cert-file and --key-file belong together; give both or neither",
			},
		},
		{name: "port 0", cfg: client.Gateway{Server: "gateway:0"}, problems: []string{`--server="gateway:0": port "0" is not a number from 1 to 65535`}},
		{name: "port by name", cfg: client.Gateway{Server: "gateway:http"}, problems: []string{`--server="gateway:http": port "http" is not a number from 1 to 65535`}},
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
