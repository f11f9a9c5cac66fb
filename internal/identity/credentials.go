package identity

import (
	"context"
	"errors"
	"net"
	"time"

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
		return nil, nil, err
	}
	return &accepted{Conn: secure, client: r.client}, info, nil
}

// alertTime is how long the reason of a peer that closes the connection may take.
const alertTime = 500 * time.Millisecond

// accepted is a connection whose handshake was a success on this side. In TLS 1.3 a server refuses
// a client certificate afterwards, by an alert before the end of the connection. A write that meets
// that end reports the alert in place of its "broken pipe".
type accepted struct {
	net.Conn
	client *Client
}

func (a *accepted) Read(data []byte) (int, error) {
	n, err := a.Conn.Read(data)
	if err != nil {
		a.client.observe(err, a.RemoteAddr())
	}
	return n, err
}

func (a *accepted) Write(data []byte) (int, error) {
	n, err := a.Conn.Write(data)
	if err == nil {
		return n, nil
	}
	_ = a.SetReadDeadline(time.Now().Add(alertTime)) // the connection is of no use any more
	for {
		_, alert := a.Read(make([]byte, 1<<10))
		switch {
		case alert == nil:
		case failedBecause(alert) == refusedByPeer:
			return n, alert
		default:
			return n, err
		}
	}
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
