package httpaccess

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/identity"
)

// Authenticator finds the caller of a request, as *authn.Authenticator does.
type Authenticator interface {
	Authenticate(ctx context.Context, request authn.Request) (*authn.Caller, error)
}

// Config configures an Access. All fields are required, except Connections.
type Config struct {
	// TLS is the configuration of the listeners, with certificate and client authorities.
	TLS *tls.Config
	// Connections limits the connections; nil accepts all.
	Connections   *connlimit.Limiter
	Authenticator Authenticator
	Authorizer    *authz.Authorizer
	// AlwaysAllow says that Authorizer allows everything, so that only loopback is served.
	AlwaysAllow bool
	// Refused is called for each request that is refused, with its caller, nil if it is not known.
	Refused func(r *http.Request, caller *authn.Caller, err error)
}

// Access decides about the requests of one process. It is safe for concurrent use. A nil Access is
// that of a server with --insecure.
type Access struct{ cfg Config }

// New returns an Access for HTTPS.
func New(cfg Config) *Access { return &Access{cfg: cfg} }

// Insecure says that the server has no certificates and checks no caller.
func (a *Access) Insecure() bool { return a == nil }

// Authorizer returns the authorizer of the configuration.
func (a *Access) Authorizer() *authz.Authorizer { return a.cfg.Authorizer }

// Listener returns a listener that serves TLS over raw. It fails if raw is reachable beyond
// loopback and would be served without TLS, or without authorization. flag is the flag with the
// address.
func (a *Access) Listener(raw net.Listener, flag string) (net.Listener, error) {
	if address, ok := raw.Addr().(*net.TCPAddr); ok && !address.IP.IsLoopback() {
		if err := a.exposed(flag, address.String()); err != nil {
			return raw, err
		}
	}
	if a.Insecure() {
		return raw, nil
	}
	return a.tlsListener(raw), nil
}

// tlsListener puts the limits inside of TLS: they count handshakes, and net/http looks for the TLS
// connection.
func (a *Access) tlsListener(raw net.Listener) net.Listener {
	limiter := a.cfg.Connections
	if limiter == nil {
		return tls.NewListener(raw, a.cfg.TLS)
	}
	return tls.NewListener(limiter.TLSListener(raw), limiter.TLS(a.cfg.TLS))
}

// Check returns why an address, host:port, may not be served, or nil. flag is the flag with the
// address.
func (a *Access) Check(flag, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil || identity.IsLoopback(host) {
		return nil // the flag's own check reports a malformed address
	}
	return a.exposed(flag, address)
}

// exposed returns why an address beyond loopback may not be served, or nil.
func (a *Access) exposed(flag, address string) error {
	switch {
	case a.Insecure():
		return fmt.Errorf("%s=%s: with --insecure, HTTP is served on a loopback address only, for example 127.0.0.1:0; or give --tls-cert-file, --tls-key-file and --client-ca-file", flag, address)
	case a.cfg.AlwaysAllow:
		return fmt.Errorf("%s=%s: with --authorization-mode=AlwaysAllow, HTTP is served on a loopback address only, for example 127.0.0.1:0", flag, address)
	default:
		return nil
	}
}

// Identify returns the request with its caller in the context, for [authn.FromContext]. The error
// is a gRPC status.
func (a *Access) Identify(r *http.Request) (*http.Request, error) {
	if a.Insecure() {
		caller := &authn.Caller{User: authn.Anonymous(), Peer: authn.Anonymous(), Address: r.RemoteAddr, Unchecked: true}
		return r.WithContext(authn.NewContext(r.Context(), caller)), nil
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	caller, err := a.cfg.Authenticator.Authenticate(r.Context(), authn.Request{
		TLS: r.TLS, Address: r.RemoteAddr, Values: r.Header.Values, Connections: a.cfg.Connections, Connection: local,
	})
	if err != nil {
		a.cfg.Refused(r, nil, err)
		return nil, err
	}
	return r.WithContext(authn.NewContext(r.Context(), caller)), nil
}

// Known is Identify, and refuses a caller without credentials.
func (a *Access) Known(r *http.Request) (*http.Request, error) {
	r, err := a.Identify(r)
	if err != nil {
		return nil, err
	}
	if caller := authn.FromContext(r.Context()); !caller.Unchecked && caller.Anonymous() {
		err := authn.NotAuthenticated("this path needs a client certificate or a bearer token; `trivet dashboard` presents those of a kubeconfig")
		a.cfg.Refused(r, caller, err)
		return nil, err
	}
	return r, nil
}

// MayGet returns nil if the caller of a request from Identify may get a path. The error is a gRPC
// status.
func (a *Access) MayGet(r *http.Request, path string) error { return a.may(r, "get", path) }

// MayPut is MayGet for a change of a path.
func (a *Access) MayPut(r *http.Request, path string) error { return a.may(r, "put", path) }

func (a *Access) may(r *http.Request, verb, path string) error {
	if a.Insecure() {
		return nil
	}
	caller := authn.FromContext(r.Context())
	err := a.cfg.Authorizer.Authorize(r.Context(), caller, authz.Attributes{Verb: verb, Path: path})
	if err != nil {
		a.cfg.Refused(r, caller, err)
	}
	return err
}

// Refuse returns the HTTP status of an error of this package, and sets the header of a 401.
func Refuse(header http.Header, err error) int {
	switch status.Code(err) {
	case codes.Unauthenticated:
		header.Set("WWW-Authenticate", `Bearer realm="trivet"`)
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	default:
		return http.StatusServiceUnavailable
	}
}

// IsOwnName reports whether a host can mean only the machine that it was sent to. Another name may
// be a website's that resolves to 127.0.0.1: the browser would let its scripts read the answers.
// With TLS, the certificate does not have such a name.
func IsOwnName(host string) bool {
	name := host
	if without, _, err := net.SplitHostPort(host); err == nil {
		name = without
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil
}
