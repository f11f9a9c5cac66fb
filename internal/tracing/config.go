package tracing

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trivet-dev/trivet/internal/identity"
)

// perMillion is the sampling rate of all traces.
const perMillion = 1_000_000

// Config says where traces are sent. The zero value sends none.
type Config struct {
	// Endpoint is the collector's address, host:port, for OTLP over gRPC; empty for no traces.
	Endpoint string
	// SamplingRatePerMillion is how many of a million traces that begin here are recorded.
	SamplingRatePerMillion int32
	// TLS has the authorities of the collector (empty: the system's) and the client's certificate
	// (empty: none).
	TLS identity.Files
}

// DefaultConfig returns the documented defaults: no endpoint, and all traces once there is one.
func DefaultConfig() Config { return Config{SamplingRatePerMillion: perMillion} }

// RegisterFlags adds the flags --tracing-*. The current values of c are their defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Endpoint, "tracing-endpoint", c.Endpoint,
		"Address of an OpenTelemetry collector, host:port, that receives traces over OTLP gRPC. Empty: no traces. With TLS, except to a loopback address without --tracing-ca-file.")
	fs.Int32Var(&c.SamplingRatePerMillion, "tracing-sampling-rate-per-million", c.SamplingRatePerMillion,
		"How many of a million traces that begin in this process are recorded.")
	fs.StringVar(&c.TLS.CAFile, "tracing-ca-file", c.TLS.CAFile, "PEM file with the authorities of the collector's certificate; empty: the system's.")
	fs.StringVar(&c.TLS.CertFile, "tracing-cert-file", c.TLS.CertFile, "PEM file with the client certificate that the collector asks for; empty: none.")
	fs.StringVar(&c.TLS.KeyFile, "tracing-key-file", c.TLS.KeyFile, "PEM file with the private key of --tracing-cert-file.")
}

// Validate returns all problems of c, each naming its flag. It reads the TLS files.
func (c *Config) Validate() []error {
	var problems []error
	if c.SamplingRatePerMillion < 0 || c.SamplingRatePerMillion > perMillion {
		problems = append(problems, fmt.Errorf("--tracing-sampling-rate-per-million=%d: must be between 0 and %d", c.SamplingRatePerMillion, perMillion))
	}
	if c.Endpoint == "" {
		if c.TLS != (identity.Files{}) {
			problems = append(problems, errors.New("--tracing-ca-file, --tracing-cert-file and --tracing-key-file need --tracing-endpoint"))
		}
		return problems
	}
	host, port, err := net.SplitHostPort(c.Endpoint)
	if err == nil && host == "" {
		err = errors.New("the host is missing")
	}
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		problems = append(problems, fmt.Errorf("--tracing-endpoint=%q is not host:port: %w", c.Endpoint, err))
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		problems = append(problems, errors.New("--tracing-cert-file and --tracing-key-file need each other"))
	} else if _, err := c.credentials(slog.New(slog.DiscardHandler)); err != nil {
		problems = append(problems, err)
	}
	return problems
}

// credentials returns those of the connection to the collector. Only a loopback address is reached
// without TLS: spans name the objects of the cluster.
func (c *Config) credentials(logger *slog.Logger) (credentials.TransportCredentials, error) {
	host, _, _ := net.SplitHostPort(c.Endpoint)
	if identity.IsLoopback(host) && c.TLS == (identity.Files{}) {
		return insecure.NewCredentials(), nil
	}
	client, err := c.TLS.Client(logger)
	if err != nil {
		return nil, fmt.Errorf("--tracing-ca-file, --tracing-cert-file, --tracing-key-file: %w", err)
	}
	return client.Credentials(), nil
}
