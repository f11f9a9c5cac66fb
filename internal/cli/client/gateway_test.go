package client_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/localgateway"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
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
	env := map[string]string{"TRIVET_SERVER": "gateway:7600", "TRIVET_CA_FILE": "ca.pem", "TRIVET_NAMESPACE": "own"}
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want client.Gateway
	}{
		{name: "defaults", want: client.Gateway{Namespace: "trivet-system"}},
		{
			name: "environment", env: env,
			want: client.Gateway{Server: "gateway:7600", TLS: identity.Files{CAFile: "ca.pem"}, Namespace: "own"},
		},
		{
			name: "flags", env: env, args: []string{"--server=other:1", "--ca-file=", "--cert-file=c", "--key-file=k", "--trivet-namespace=other"},
			want: client.Gateway{Server: "other:1", TLS: identity.Files{CertFile: "c", KeyFile: "k"}, Namespace: "other"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parsed(t, test.env, test.args...), cmpopts.IgnoreUnexported(client.Gateway{})); diff != "" {
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
		{
			name: "two identities", cfg: client.Gateway{Token: "t", ServiceAccount: "robot"},
			problems: []string{
				`--as-serviceaccount="robot": must be NAMESPACE/NAME`,
				"--token and --as-serviceaccount exclude each other: each is an identity",
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

func TestGateway_RefusesImpersonation(t *testing.T) {
	cfg := parsed(t, nil, "--as", "boss", "--as-group=system:masters")
	var got []string
	for _, problem := range cfg.Validate() {
		got = append(got, problem.Error())
	}
	const why = ": a gateway knows no impersonation; use --as-serviceaccount NAMESPACE/NAME, or a kubeconfig of that user"
	if diff := cmp.Diff([]string{"--as" + why, "--as-group" + why}, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestGateway_ALocalGatewayComesBeforeTheKubeconfig(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	authority := identitytest.NewAuthority(t, "authority")
	env := map[string]string{"HOME": t.TempDir()}
	lookup := func(name string) string { return env[name] }
	files := authority.Files(t, "admin", authority)
	text := fmt.Sprintf("%s=%s\n%s=%s\n%s=%s\n%s=%s\n", localgateway.ServerVariable, listener.Addr(),
		localgateway.CAFileVariable, files.CAFile, localgateway.CertFileVariable, files.CertFile, localgateway.KeyFileVariable, files.KeyFile)
	file := localgateway.File(lookup)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  string
		args []string
		want string
	}{
		"nothing is given":            {want: listener.Addr().String()},
		"the environment wins":        {env: "gateway.example:7600", want: "gateway.example:7600"},
		"a flag wins":                 {args: []string{"--server", "other.example:7600"}, want: "other.example:7600"},
		"a kubeconfig wins":           {args: []string{"--kubeconfig", "/does/not/exist"}},
		"a context wins":              {args: []string{"--context", "none"}},
		"a token keeps the gateway":   {args: []string{"--token", "t"}, want: listener.Addr().String()},
		"a namespace changes nothing": {args: []string{"--trivet-namespace", "own"}, want: listener.Addr().String()},
	} {
		t.Run(name, func(t *testing.T) {
			env["TRIVET_SERVER"] = c.env
			cfg := parsed(t, env, c.args...)
			conn, err := cfg.Dial()
			if err == nil {
				defer conn.Close()
			}
			if (err == nil) != (c.want != "") || err == nil && cfg.Where() != "the gateway at "+c.want {
				t.Errorf("Dial() is to %s, %v, want %q", cfg.Where(), err, c.want)
			}
		})
	}
}
