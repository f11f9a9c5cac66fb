package rpcclient

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/trivet-dev/trivet/internal/identity"
)

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
