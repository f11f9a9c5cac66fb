package etcdconn

import (
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Config says where etcd is and how to prove who asks.
type Config struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
	DialTimeout               time.Duration
	RequestTimeout            time.Duration
}

// RegisterFlags adds the flags; what c holds already are the defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {}

// Validate returns every problem.
func (c *Config) Validate() []error { return nil }

// Connect returns a client that connects when it is first used.
func Connect(cfg Config, logger *slog.Logger) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: cfg.Endpoints, DialTimeout: cfg.DialTimeout})
}
