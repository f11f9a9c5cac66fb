package rpcclient

import (
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	// pingTime is twice rpcserver's minimum, so that network delays do not look like too many
	// pings.
	pingTime    = 10 * time.Second
	pingTimeout = 5 * time.Second
	// maxReceiveBytes allows a page of 5,000 leases.
	maxReceiveBytes = 16 << 20
	connectTimeout  = 5 * time.Second
)

// Config has the identity of a client and the identity that it requires of servers.
type Config struct {
	// TLS has the client's certificate and key (empty: none, which Trivet's servers refuse) and the
	// authorities of server certificates (empty: the system's).
	TLS identity.Files
	// Identity is an identity whose files were read already, in place of TLS; optional. It keeps
	// the certificates in use while the files cannot be read.
	Identity *identity.Client
	// ServerName is the name that the server's certificate must have; empty: the host of the
	// target. Certificates of Trivet's servers have the name of the service, because addresses of
	// replicas change.
	ServerName string
	// Tracing records the calls; nil records none.
	Tracing stats.Handler
	// Insecure connects without TLS. Trivet's servers accept that over loopback only.
	Insecure bool
}

// Dial returns a connection to a target of grpc.NewClient. It does not wait for the target. Options
// in extra override the defaults. The caller closes the connection. Dial fails on unreadable
// certificate files and on a malformed target.
func Dial(target string, cfg Config, logger *slog.Logger, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	transport, err := transportOption(cfg, logger)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	options := defaults(transport, cfg.ServerName)
	if cfg.Tracing != nil {
		options = append(options, grpc.WithStatsHandler(cfg.Tracing))
	}
	conn, err := grpc.NewClient(target, append(options, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	return conn, nil
}

func transportOption(cfg Config, logger *slog.Logger) (grpc.DialOption, error) {
	if cfg.Insecure {
		return grpc.WithTransportCredentials(insecure.NewCredentials()), nil
	}
	if cfg.Identity != nil {
		return grpc.WithTransportCredentials(cfg.Identity.Credentials()), nil
	}
	client, err := cfg.TLS.Client(logger)
	if err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(client.Credentials()), nil
}

func defaults(transport grpc.DialOption, serverName string) []grpc.DialOption {
	return []grpc.DialOption{
		transport,
		grpc.WithAuthority(serverName), // empty: gRPC's own choice
		grpc.WithUserAgent("trivet/" + identity.Version()),
		grpc.WithDefaultServiceConfig(serviceConfig()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceiveBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:                pingTime,
			Timeout:             pingTimeout,
			PermitWithoutStream: true,
		}),
		// gRPC's default maximum of two minutes is too long after the server has returned.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: connectTimeout,
		}),
	}
}
