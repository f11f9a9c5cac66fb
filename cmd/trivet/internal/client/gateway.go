// Package gatewayconn is how the commands of trivet reach a gateway.
//
// A gateway on loopback is reached in plaintext unless TLS flags are given, because that is how `trivet up` and a sidecar
// serve it. Any other gateway is reached by TLS only: with the system's authorities unless --ca-file names others, and with
// the client certificate that Trivet's servers ask for.
package client

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

const defaultServer = "127.0.0.1:7600"

// Config is where the gateway is and how to prove oneself to it.
type Config struct {
	// Server is the gateway's gRPC address, host:port.
	Server string
	// TLS holds the files for TLS; without any, loopback is reached in plaintext.
	TLS identity.Files
}

// RegisterFlags adds the flags. The environment, TRIVET_SERVER and so on, gives their defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet, env func(string) string) {
	fs.StringVar(&c.Server, "server", cmp.Or(env("TRIVET_SERVER"), defaultServer),
		"The gateway's gRPC address, host:port (environment: TRIVET_SERVER). On loopback it is reached in plaintext unless TLS flags are given.")
	fs.StringVar(&c.TLS.CAFile, "ca-file", env("TRIVET_CA_FILE"),
		"PEM file with the authorities of the gateway's certificate; the system's by default (environment: TRIVET_CA_FILE).")
	fs.StringVar(&c.TLS.CertFile, "cert-file", env("TRIVET_CERT_FILE"),
		"PEM file with your certificate (environment: TRIVET_CERT_FILE).")
	fs.StringVar(&c.TLS.KeyFile, "key-file", env("TRIVET_KEY_FILE"),
		"PEM file with the private key of --cert-file (environment: TRIVET_KEY_FILE).")
}

// Validate returns all problems, each naming the flag to change.
func (c *Config) Validate() []error {
	var problems []error
	if _, port, err := net.SplitHostPort(c.Server); err != nil {
		problems = append(problems, fmt.Errorf("--server=%q: must be host:port, for example %q", c.Server, defaultServer))
	} else if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		problems = append(problems, fmt.Errorf("--server=%q: port %q is not a number from 1 to 65535", c.Server, port))
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		problems = append(problems, errors.New("--cert-file and --key-file belong together; give both or neither"))
	}
	return problems
}

// Dial connects lazily: whether the gateway is there shows with the first call. Calls are not retried, since the caller
// decides whether it wants to wait. The error is a file that cannot be read.
func (c *Config) Dial(logger *slog.Logger) (*grpc.ClientConn, error) {
	conn, err := rpcclient.Dial(c.Server, rpcclient.Config{TLS: c.TLS, Insecure: c.plaintext()}, logger, grpc.WithDisableRetry())
	if err != nil {
		return nil, fmt.Errorf("--ca-file, --cert-file, --key-file: %w", err)
	}
	return conn, nil
}

func (c *Config) plaintext() bool {
	host, _, err := net.SplitHostPort(c.Server)
	return err == nil && c.TLS == identity.Files{} && (host == "localhost" || net.ParseIP(host).IsLoopback())
}
