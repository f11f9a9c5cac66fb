package rpcclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	// pingTime is twice what rpcserver's enforcement asks for, so that delays on the way never look like a flood of pings.
	pingTime    = 10 * time.Second
	pingTimeout = 5 * time.Second
	// maxReceiveBytes leaves room for a page of 5,000 leases.
	maxReceiveBytes = 16 << 20
	connectTimeout  = 5 * time.Second
)

// Config is how a client proves itself and what it trusts.
type Config struct {
	// TLS holds the client's certificate and key (empty: it presents none, which Trivet's servers refuse) and the
	// authorities of servers' certificates (empty: the system's).
	TLS identity.Files
	// ServerName is the name that the server's certificate must hold; empty: the host of the target. Trivet's servers hold
	// the name of their service, because the addresses of replicas come and go.
	ServerName string
	// Insecure connects without TLS. Trivet's servers accept that over loopback only.
	Insecure bool
}

// Dial returns a connection to target, which is as grpc.NewClient takes it. It returns at once: whether the target answers
// shows with the first call. Options in extra come last and win. The caller closes the connection.
//
// Errors: certificate files that cannot be read, and a malformed target.
func Dial(target string, cfg Config, logger *slog.Logger, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	transport, err := transportOption(cfg, logger)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	conn, err := grpc.NewClient(target, append(defaults(transport, cfg.ServerName), extra...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	return conn, nil
}

func transportOption(cfg Config, logger *slog.Logger) (grpc.DialOption, error) {
	if cfg.Insecure {
		return grpc.WithTransportCredentials(insecure.NewCredentials()), nil
	}
	client, err := cfg.TLS.Client(logger)
	if err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(newRotating(client)), nil
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
		// gRPC's own ceiling of two minutes would keep agents away long after their server is back.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: connectTimeout,
		}),
	}
}

// rotating makes the TLS configuration anew for every handshake, because crypto/tls takes the authorities that a client
// trusts from its configuration and offers no other way to renew them.
type rotating struct {
	client     *identity.Client
	serverName string // overrides the authority; set before use only
}

func newRotating(client *identity.Client) *rotating {
	return &rotating{client: client}
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *rotating) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if r.serverName != "" {
		authority = r.serverName
	}
	return credentials.NewTLS(r.client.TLS()).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials; these are a client's.
func (r *rotating) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("client credentials cannot serve")
}

// Info implements credentials.TransportCredentials.
func (r *rotating) Info() credentials.ProtocolInfo {
	info := credentials.NewTLS(r.client.TLS()).Info()
	info.ServerName = r.serverName
	return info
}

// Clone implements credentials.TransportCredentials. The copy shares the certificates and has its own server name.
func (r *rotating) Clone() credentials.TransportCredentials {
	clone := *r
	return &clone
}

// OverrideServerName implements credentials.TransportCredentials.
func (r *rotating) OverrideServerName(name string) error {
	r.serverName = name
	return nil
}
