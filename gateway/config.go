package gateway

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Bounds of Config.BackendTimeout. No network answers below the lower one. A replica that hangs
// delays each status by the timeout, and the page and `trivet status` give up after some eight
// seconds.
const (
	minBackendTimeout = 50 * time.Millisecond
	maxBackendTimeout = 5 * time.Second
)

// Config is the configuration of the gateway. The process configures the gRPC server.
type Config struct {
	// HTTPListen is the address of the page and the HTTP/JSON API, host:port; empty disables both.
	HTTPListen string
	// BackendTimeout is how long one replica has to answer.
	BackendTimeout time.Duration
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{HTTPListen: "127.0.0.1:7680", BackendTimeout: time.Second}
}

// RegisterFlags adds the flags. The values in c are the defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.HTTPListen, "http-listen", c.HTTPListen,
		"Address of the page and the HTTP/JSON API, host:port; empty disables both. It serves HTTPS with the certificate of --tls-cert-file; with --insecure plain HTTP, on loopback only.")
	fs.DurationVar(&c.BackendTimeout, "backend-timeout", c.BackendTimeout,
		"How long one replica has to answer before the merged status comes without it.")
}

// Validate returns all problems, each with the flag and the value.
func (c *Config) Validate() []error {
	var problems []error
	if err := validateListen(c.HTTPListen); err != nil {
		problems = append(problems, fmt.Errorf("--http-listen=%q: %w", c.HTTPListen, err))
	}
	if c.BackendTimeout < minBackendTimeout || c.BackendTimeout > maxBackendTimeout {
		problems = append(problems, fmt.Errorf("--backend-timeout=%s: must be between %s and %s", c.BackendTimeout, minBackendTimeout, maxBackendTimeout))
	}
	return problems
}

func validateListen(address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf(`must be host:port, for example "127.0.0.1:7680", or empty: %w`, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	if host != "" && host != "localhost" && net.ParseIP(host) == nil {
		return fmt.Errorf("host %q is not an IP address of this machine", host)
	}
	return nil
}
