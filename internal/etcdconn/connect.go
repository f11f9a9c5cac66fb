package etcdconn

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	// Pings detect a peer that vanished. etcd refuses clients that ping more often than every five
	// seconds.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 5 * time.Second

	// reconnectMax bounds the pause between attempts to connect.
	reconnectMin = 250 * time.Millisecond
	reconnectMax = 2 * time.Second

	// maxMessage bounds a response. A list of all of Trivet's keys is far smaller.
	maxMessage = 16 << 20
)

// Connect returns a client. It does not wait for etcd. It fails on an invalid configuration and on
// unreadable certificate files. The caller closes the client.
func Connect(cfg Config, logger *slog.Logger) (*clientv3.Client, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	config := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          cfg.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallSendMsgSize:   2 << 20, // etcd's own limit is 1.5 MiB
		MaxCallRecvMsgSize:   maxMessage,
		Logger:               newLogger(logger),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(connectParams(cfg)),
		},
	}
	if cfg.secure() {
		secure, err := secureOption(cfg, logger)
		if err != nil {
			return nil, fmt.Errorf("etcd client: %w", err)
		}
		config.DialOptions = append(config.DialOptions, secure)
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return client, nil
}

// secureOption returns credentials that read changed files. clientv3.Config.TLS would keep the
// first authorities for the life of the client.
func secureOption(cfg Config, logger *slog.Logger) (grpc.DialOption, error) {
	files := identity.Files{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, CAFile: cfg.CAFile}
	client, err := files.Client(logger)
	if err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(client.Credentials()), client.Register(cfg.Metrics, "etcd")
}

func connectParams(cfg Config) grpc.ConnectParams {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: cfg.DialTimeout}
	params.Backoff.BaseDelay = reconnectMin
	params.Backoff.MaxDelay = reconnectMax
	return params
}

// Explain adds what helps to an error of etcd that does not say it.
func Explain(err error) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return fmt.Errorf("%w: the role of the client certificate's user lacks a right; deploy/etcd-roles.sh gives each server its rights", err)
	}
	return err
}

// KeyPrefix returns the prefix of every key of a cluster, "/trivet/<cluster>/".
func KeyPrefix(cluster string) string { return "/trivet/" + cluster + "/" }
