package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// idleTimeout is how long an unused connection to the page is kept.
const idleTimeout = 90 * time.Second

// HTTPTransport sends requests to the gateway's page, whatever the host of their URL, and adds the
// credentials of the person. It is safe for concurrent use.
type HTTPTransport struct {
	link      *link
	transport *http.Transport
	scheme    string
	host      string
}

// HTTPTransport returns the transport to the gateway's page. It fails if there are no credentials.
func (g *Gateway) HTTPTransport() (*HTTPTransport, error) {
	l, err := g.open()
	if err != nil {
		return nil, err
	}
	t := &HTTPTransport{link: l, scheme: "https", host: "localhost"} // a gateway on loopback refuses other names
	if g.Server != "" {
		t.host = g.httpAddress()
	}
	if l.tls == nil {
		t.scheme = "http"
	}
	t.transport = &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, "http") },
		DialTLSContext:    func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dialTLS(ctx) },
		ForceAttemptHTTP2: true, // one connection for all streams of a page
		IdleConnTimeout:   idleTimeout,
	}
	return t, nil
}

// dialTLS connects to the page.
func (l *link) dialTLS(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	conn, err := l.dial(ctx, "http")
	if err != nil {
		return nil, err
	}
	config, err := l.tls(ctx)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", l.where, err), conn.Close())
	}
	return secured, nil
}

// RoundTrip sends a request. It replaces the credentials of the request by those of the person.
func (t *HTTPTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.URL.Scheme, request.URL.Host, request.Host = t.scheme, t.host, t.host
	request.Header.Del("Authorization")
	if t.link.token != nil {
		token, err := t.link.token(request.Context())
		if err != nil {
			if request.Body != nil {
				err = errors.Join(err, request.Body.Close())
			}
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return t.transport.RoundTrip(request)
}

// Close ends the unused connections.
func (t *HTTPTransport) Close() { t.transport.CloseIdleConnections() }
