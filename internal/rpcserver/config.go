package rpcserver

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/identity"
)

// Config configures a server: its address, its TLS files and its limits.
type Config struct {
	// Listen is the address to listen on, host:port. Port 0 takes a free one.
	Listen string
	// TLS has the server's certificate and key and the authorities of client certificates.
	TLS identity.Files
	// PeerCAFile has the authorities of Trivet's own servers and gateways; empty: those of TLS.
	PeerCAFile string
	// Insecure serves without TLS. It is accepted only while Listen is a loopback address.
	Insecure bool
	// Access says which callers may call.
	Access AccessConfig
	// Connections has the limits of connections.
	Connections connlimit.Config
	// MaxRecvBytes limits the size of a received message, uncompressed.
	MaxRecvBytes int
	// MaxHeaderBytes limits the size of the headers of a call beside its bearer token,
	// uncompressed. A gateway may send the groups of the original caller besides.
	MaxHeaderBytes int
	// MaxConcurrentStreams limits the concurrent calls of one connection. Further calls wait at the
	// client.
	MaxConcurrentStreams uint32
	// MaxConnectionAge is the age at which a connection is closed gracefully, so that clients
	// spread over the replicas. gRPC adds up to 10 % of jitter; calls in progress get another 30 s.
	// 0 means no limit.
	MaxConnectionAge time.Duration
	// DrainTimeout is how long calls in progress may run after a stop has begun.
	DrainTimeout time.Duration
}

// DefaultConfig returns the documented defaults with the given listen address.
func DefaultConfig(listen string) Config {
	return Config{
		Listen:               listen,
		Access:               DefaultAccessConfig(),
		Connections:          connlimit.DefaultConfig(),
		MaxRecvBytes:         1 << 20,
		MaxHeaderBytes:       8 << 10,
		MaxConcurrentStreams: 100,
		MaxConnectionAge:     30 * time.Minute,
		DrainTimeout:         10 * time.Second,
	}
}

// RegisterFlags adds the flags of the server to fs. The current values of c are their defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Listen, "listen", c.Listen, "Address to serve gRPC on, host:port; port 0 takes a free one.")
	fs.StringVar(&c.TLS.CertFile, "tls-cert-file", c.TLS.CertFile, "PEM file with the server's certificate, leaf first. Read again when it changes.")
	fs.StringVar(&c.TLS.KeyFile, "tls-key-file", c.TLS.KeyFile, "PEM file with the private key of --tls-cert-file.")
	fs.StringVar(&c.TLS.CAFile, "client-ca-file", c.TLS.CAFile, "PEM file with the authorities that clients' certificates must come from.")
	fs.StringVar(&c.PeerCAFile, "peer-ca-file", c.PeerCAFile, "PEM file with the authorities of Trivet's own servers and gateways; empty: --client-ca-file. Give it if other authorities may issue certificates of clients.")
	fs.BoolVar(&c.Insecure, "insecure", c.Insecure, "Serve without TLS; accepted only while --listen is a loopback address.")
	c.Access.registerFlags(fs)
	c.Connections.RegisterFlags(fs)
	fs.IntVar(&c.MaxRecvBytes, "max-recv-bytes", c.MaxRecvBytes, "Largest message accepted, in bytes.")
	fs.IntVar(&c.MaxHeaderBytes, "max-header-bytes", c.MaxHeaderBytes, "Largest headers of one call accepted beside its bearer token, in bytes; those of a gateway may have 128 KiB, for the groups of the original caller.")
	fs.Uint32Var(&c.MaxConcurrentStreams, "max-concurrent-streams", c.MaxConcurrentStreams, "Calls of one connection that run at a time.")
	fs.DurationVar(&c.MaxConnectionAge, "max-connection-age", c.MaxConnectionAge, "Ask a connection to go after this long, so that clients spread over replicas; 0 never does.")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", c.DrainTimeout, "How long calls in progress may take to finish when the process stops.")
}

// Validate returns all problems of c, each naming the flag to change. It reads the TLS files.
func (c *Config) Validate() []error {
	var problems []error
	host, err := splitListen(c.Listen)
	if err != nil {
		problems = append(problems, fmt.Errorf("--listen=%q: %w", c.Listen, err))
	}
	problems = append(problems, c.validateSecurity(host, err == nil)...)
	problems = append(problems, c.Access.validate(err == nil && identity.IsLoopback(host))...)
	problems = append(problems, c.Connections.Validate()...)
	return append(problems, c.validateLimits()...)
}

func (c *Config) validateSecurity(host string, hostKnown bool) []error {
	if !c.Insecure {
		return c.validateFiles()
	}
	var problems []error
	if hostKnown && !identity.IsLoopback(host) {
		problems = append(problems, fmt.Errorf(
			"--insecure is accepted only while --listen is a loopback address such as 127.0.0.1:0, not %q; give --tls-cert-file, --tls-key-file and --client-ca-file instead", c.Listen))
	}
	if c.TLS != (identity.Files{}) || c.PeerCAFile != "" {
		problems = append(problems, errors.New(
			"--insecure contradicts --tls-cert-file, --tls-key-file, --client-ca-file and --peer-ca-file; give either it or them"))
	}
	return problems
}

func (c *Config) validateFiles() []error {
	var problems []error
	for _, file := range []struct{ flag, path string }{
		{flag: "--tls-cert-file", path: c.TLS.CertFile},
		{flag: "--tls-key-file", path: c.TLS.KeyFile},
		{flag: "--client-ca-file", path: c.TLS.CAFile},
	} {
		if file.path == "" {
			problems = append(problems, fmt.Errorf("%s is required (or --insecure while --listen is a loopback address)", file.flag))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	if _, err := c.TLS.ServerTLS(slog.New(slog.DiscardHandler)); err != nil {
		return []error{fmt.Errorf("--tls-cert-file, --tls-key-file, --client-ca-file: %w", err)}
	}
	if _, err := c.PeerFiles().Client(slog.New(slog.DiscardHandler)); err != nil {
		return []error{fmt.Errorf("--peer-ca-file: %w", err)}
	}
	return nil
}

// PeerFiles returns the server's certificate and the authorities of Trivet's own servers and
// gateways. An authority that may issue certificates of clients need not be trusted to issue those
// of servers.
func (c *Config) PeerFiles() identity.Files {
	files := c.TLS
	files.CAFile = cmp.Or(c.PeerCAFile, c.TLS.CAFile)
	return files
}

func (c *Config) validateLimits() []error {
	var problems []error
	if c.MaxRecvBytes <= 0 {
		problems = append(problems, fmt.Errorf("--max-recv-bytes=%d: must be positive", c.MaxRecvBytes))
	}
	// HTTP/2 counts header sizes in 32 bits.
	if c.MaxHeaderBytes <= 0 || int64(c.MaxHeaderBytes) > 1<<31-1 {
		problems = append(problems, fmt.Errorf("--max-header-bytes=%d: must be between 1 and 2147483647", c.MaxHeaderBytes))
	}
	if c.MaxConcurrentStreams == 0 {
		problems = append(problems, errors.New("--max-concurrent-streams=0: must be positive"))
	}
	if c.MaxConnectionAge < 0 {
		problems = append(problems, fmt.Errorf("--max-connection-age=%v: must not be negative", c.MaxConnectionAge))
	}
	if c.DrainTimeout <= 0 {
		problems = append(problems, fmt.Errorf("--drain-timeout=%v: must be positive", c.DrainTimeout))
	}
	return problems
}

func splitListen(listen string) (host string, err error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", errors.New(`must be host:port, for example "127.0.0.1:7601"`)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	return host, nil
}
