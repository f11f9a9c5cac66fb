package term

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// DefaultTTL is how long etcd keeps the keys of a replica that has stopped renewing them.
const DefaultTTL = 5 * time.Second

// Config says who a candidate is and what it stands for.
type Config struct {
	Member  Member
	Shards  int
	TTL     time.Duration
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Candidate takes part in dividing the shards of one service among its replicas.
type Candidate struct {
	client *clientv3.Client
	cfg    Config
}

// New returns a candidate; it starts nothing.
func New(client *clientv3.Client, cfg Config) (*Candidate, error) {
	return &Candidate{client: client, cfg: cfg}, nil
}

var errUnbuilt = errors.New("being built")

// Run joins, claims and runs one body for every shard held, until ctx ends.
func (c *Candidate) Run(ctx context.Context, body Body) error { return errUnbuilt }

// Status is a snapshot.
func (c *Candidate) Status() Status { return Status{} }

// Check returns nil while the session is alive.
func (c *Candidate) Check() error { return errUnbuilt }

// Session returns the replica's lease.
func (c *Candidate) Session() (clientv3.LeaseID, context.Context, bool) { return 0, nil, false }
