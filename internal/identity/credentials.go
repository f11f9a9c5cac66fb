package identity

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials returns gRPC credentials that use the current certificate and authorities for each
// handshake.
func (c *Client) Credentials() credentials.TransportCredentials { return &rotating{client: c} }

// rotating are credentials with a new TLS configuration for each handshake, because crypto/tls
// reads the authorities of a client only from its configuration.
type rotating struct {
	client     *Client
	serverName string // overrides the authority; set before use only
}

// ClientHandshake uses the current certificates.
func (r *rotating) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if r.serverName != "" {
		authority = r.serverName
	}
	secure, info, err := credentials.NewTLS(r.client.TLS()).ClientHandshake(ctx, authority, conn)
	if err != nil {
		r.client.observe(err, conn.RemoteAddr())
	}
	return secure, info, err
}

// ServerHandshake fails, because these are credentials of a client.
func (r *rotating) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("client credentials cannot serve")
}

// Info returns the protocol and the overridden server name.
func (r *rotating) Info() credentials.ProtocolInfo {
	config := r.client.TLS()
	config.ServerName = r.serverName
	return credentials.NewTLS(config).Info()
}

// Clone returns a copy that shares the certificates and has its own server name.
func (r *rotating) Clone() credentials.TransportCredentials {
	clone := *r
	return &clone
}

// OverrideServerName sets the server name of later handshakes.
func (r *rotating) OverrideServerName(name string) error {
	r.serverName = name
	return nil
}
