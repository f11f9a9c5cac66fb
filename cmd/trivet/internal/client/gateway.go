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

// Gateway is the address of a gateway and the client's credentials.
type Gateway struct {
	// Server is the gateway's gRPC address, host:port.
	Server string
	// TLS has the files for TLS. Without any, the connection to loopback is plaintext.
	TLS identity.Files
}

// RegisterFlags adds the flags. Their defaults come from the environment, such as TRIVET_SERVER.
func (g *Gateway) RegisterFlags(fs *pflag.FlagSet, env func(string) string) {
	fs.StringVar(&g.Server, "server", cmp.Or(env("TRIVET_SERVER"), defaultServer),
		"The gateway's gRPC address, host:port (environment: TRIVET_SERVER). Plaintext on loopback, unless TLS flags are given.")
	fs.StringVar(&g.TLS.CAFile, "ca-file", env("TRIVET_CA_FILE"),
		"PEM file with the authorities of the gateway's certificate; default: those of the system (environment: TRIVET_CA_FILE).")
	fs.StringVar(&g.TLS.CertFile, "cert-file", env("TRIVET_CERT_FILE"),
		"PEM file with the client certificate (environment: TRIVET_CERT_FILE).")
	fs.StringVar(&g.TLS.KeyFile, "key-file", env("TRIVET_KEY_FILE"),
		"PEM file with the private key of --cert-file (environment: TRIVET_KEY_FILE).")
}

// Validate returns all problems, each with its flag.
func (g *Gateway) Validate() []error {
	var problems []error
	if _, port, err := net.SplitHostPort(g.Server); err != nil {
		problems = append(problems, fmt.Errorf("--server=%q: must be host:port, for example %q", g.Server, defaultServer))
	} else if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		problems = append(problems, fmt.Errorf("--server=%q: port %q is not a number from 1 to 65535", g.Server, port))
	}
	if (g.TLS.CertFile == "") != (g.TLS.KeyFile == "") {
		problems = append(problems, errors.New("--cert-file and --key-file belong together; give both or neither"))
	}
	return problems
}

// Dial returns a connection that connects with the first call. Calls are not retried, because only
// some commands wait. Dial fails if a file cannot be read.
func (g *Gateway) Dial() (*grpc.ClientConn, error) {
	cfg := rpcclient.Config{TLS: g.TLS, Insecure: g.isPlaintext()}
	// The calls return the errors of the connection, so nothing is logged.
	conn, err := rpcclient.Dial(g.Server, cfg, slog.New(slog.DiscardHandler), grpc.WithDisableRetry())
	if err != nil {
		return nil, fmt.Errorf("--ca-file, --cert-file, --key-file: %w", err)
	}
	return conn, nil
}

func (g *Gateway) isPlaintext() bool {
	host, _, err := net.SplitHostPort(g.Server)
	return err == nil && g.TLS == identity.Files{} && (host == "localhost" || net.ParseIP(host).IsLoopback())
}
