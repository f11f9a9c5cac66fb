package etcdconn

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/identity"
)

// Config has the endpoints of etcd and the TLS files of its client.
type Config struct {
	// Endpoints are the URLs of etcd's members, http or https, not both. At least one is needed.
	// http reaches loopback only.
	Endpoints []string
	// CAFile has the authorities of etcd's certificates; empty means the system's. CertFile and
	// KeyFile are the client certificate, both or neither. All three need https.
	CAFile, CertFile, KeyFile string
	// DialTimeout bounds one attempt to connect; 0 means DefaultConfig's.
	DialTimeout time.Duration
	// Metrics registers the metrics of the TLS files; nil means none.
	Metrics prometheus.Registerer
}

// DefaultConfig is a local etcd without TLS.
func DefaultConfig() Config {
	return Config{
		Endpoints:   []string{"http://127.0.0.1:2379"},
		DialTimeout: 2 * time.Second,
	}
}

// RegisterFlags adds the flags to fs. Their defaults are the values of c, or DefaultConfig's where
// c is empty.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	*c = c.withDefaults()
	fs.StringSliceVar(&c.Endpoints, "etcd-endpoints", c.Endpoints, "URLs of etcd's members, comma-separated; http:// on loopback only.")
	fs.StringVar(&c.CAFile, "etcd-ca-file", c.CAFile, "PEM file with the authorities that etcd's certificates must come from. Empty: the system's.")
	fs.StringVar(&c.CertFile, "etcd-cert-file", c.CertFile, "PEM file with the client certificate for etcd.")
	fs.StringVar(&c.KeyFile, "etcd-key-file", c.KeyFile, "PEM file with the key of --etcd-cert-file.")
}

func (c Config) withDefaults() Config {
	defaults := DefaultConfig()
	if len(c.Endpoints) == 0 {
		c.Endpoints = defaults.Endpoints
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = defaults.DialTimeout
	}
	return c
}

// Validate returns all problems, each with its flag. It does not read the files.
func (c *Config) Validate() []error {
	problems := c.validateEndpoints()
	if (c.CertFile == "") != (c.KeyFile == "") {
		problems = append(problems, errors.New("--etcd-cert-file and --etcd-key-file are given together or not at all"))
	}
	if c.DialTimeout < 0 {
		problems = append(problems, fmt.Errorf("dial timeout %v of etcd's client: must not be negative", c.DialTimeout))
	}
	return problems
}

func (c *Config) validateEndpoints() []error {
	if len(c.Endpoints) == 0 {
		return []error{errors.New("--etcd-endpoints: at least one URL is needed")}
	}
	var problems []error
	var schemes []string
	for _, endpoint := range c.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !hasHostAndPort(u) {
			problems = append(problems, fmt.Errorf("--etcd-endpoints %q: must be http://host:port or https://host:port", endpoint))
			continue
		}
		if host := u.Hostname(); u.Scheme == "http" && !identity.IsLoopback(host) {
			problems = append(problems, fmt.Errorf("--etcd-endpoints %q: without TLS, any machine on the way reads and changes what is written; use https beyond loopback", endpoint))
		}
		schemes = append(schemes, u.Scheme)
	}
	switch {
	case slices.Contains(schemes, "http") && slices.Contains(schemes, "https"):
		problems = append(problems, errors.New("--etcd-endpoints: http and https cannot be mixed"))
	case slices.Contains(schemes, "http") && (c.CAFile != "" || c.CertFile != "" || c.KeyFile != ""):
		problems = append(problems, errors.New("--etcd-endpoints: certificates need https; use https or remove the --etcd-*-file flags"))
	}
	return problems
}

// hasHostAndPort also refuses URL parts that etcd's client would ignore silently.
func hasHostAndPort(u *url.URL) bool {
	host, port, err := net.SplitHostPort(u.Host)
	return err == nil && host != "" && port != "" && (u.Path == "" || u.Path == "/") && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

func (c *Config) secure() bool {
	u, err := url.Parse(c.Endpoints[0])
	return err == nil && u.Scheme == "https"
}
