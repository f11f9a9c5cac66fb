package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// MaxTokenBytes bounds a bearer token. One that names 500 groups of 64 bytes has 45 KiB.
	MaxTokenBytes = 64 << 10
	// MaxHeaderBytes bounds the headers of a call or a request: the longest token, or those that
	// name an original caller, and 8 KiB of others.
	MaxHeaderBytes = max(MaxTokenBytes, MaxForwardedBytes) + 8<<10
)

// Config configures an Authenticator.
type Config struct {
	// GatewayGroup and ServerGroup are the groups in the certificates of gateways and of servers.
	// Without a group, no peer has that role.
	GatewayGroup, ServerGroup string
	// ClientAuthorities returns the authorities of client certificates at present; nil leaves each
	// connection with those of its TLS handshake. The pool is another one when they change.
	ClientAuthorities func() *x509.CertPool
	// PeerAuthorities returns the authorities of gateways and servers; nil means every authority of
	// the TLS handshake. The certificates of other authorities have neither role nor group.
	PeerAuthorities func() *x509.CertPool
	// Tokens reviews bearer tokens; nil refuses them all.
	Tokens TokenReviewer
}

// TokenReviewer finds the user of a bearer token. It is safe for concurrent use. An error of code
// Unauthenticated means that the token is not valid; any other error, that it could not be
// reviewed.
type TokenReviewer interface {
	// address is that of the peer.
	Review(ctx context.Context, token, address string) (TokenUser, error)
	// Recheck returns nil if the token is valid now, or was a moment ago.
	Recheck(ctx context.Context, token string) error
}

// TokenUser is the user of a token. Stale says that the token could not be reviewed again, and that
// the user is from a former review.
type TokenUser struct {
	User  User
	Stale bool
}

// Request has the credentials of one call.
type Request struct {
	// TLS is the verified connection; nil without TLS.
	TLS *tls.ConnectionState
	// Address is the network address of the peer.
	Address string
	// Connections is told of Connection when a bearer token was accepted on it, and when its client
	// certificate was refused; nil tells none. Connection is the address of the connection at this
	// server, as a pointer that no other connection has.
	Connections Connections
	Connection  net.Addr
	// Values returns the values of a header or of a metadata key, which is given in lower case.
	Values func(key string) []string
}

// Connections learns which connections have an identity, and which have none any more, as
// *connlimit.Limiter does. It is safe for concurrent use.
type Connections interface {
	Known(local net.Addr)
	Refused(local net.Addr)
}

// Authenticator finds the caller of a call. It is safe for concurrent use.
type Authenticator struct {
	cfg          Config
	certificates *certificates
}

// New returns an Authenticator. It contacts no server.
func New(cfg Config) *Authenticator { return &Authenticator{cfg: cfg, certificates: newCertificates()} }

// Certificates returns how many certificates have a kept caller, at most MaxCertificates.
func (a *Authenticator) Certificates() int { return len(a.certificates.known.Keys()) }

// Authenticate returns the caller of a call, which is anonymous without credentials. The error is a
// gRPC status: NOT_AUTHENTICATED, or ACCESS_REVIEW_UNAVAILABLE if a token could not be reviewed.
func (a *Authenticator) Authenticate(ctx context.Context, request Request) (*Caller, error) {
	caller, err := a.peer(ctx, request)
	if err != nil {
		return nil, err
	}
	caller.Address = request.Address
	caller.User = caller.Peer
	if err := checkForwardable(&caller.User); err != nil {
		return nil, err
	}
	if caller.Role != Gateway {
		return caller, nil
	}
	user, named, err := forwarded(request.Values)
	if err != nil {
		return nil, NotAuthenticated(err.Error())
	}
	if named {
		caller.User, caller.Forwarded, caller.Gateway = user, true, gatewayReplica(request.Values)
	}
	return caller, nil
}

// peer returns the caller that made the connection. A token counts before a certificate, because a
// client sends it on purpose for this call.
func (a *Authenticator) peer(ctx context.Context, request Request) (*Caller, error) {
	if token, given := bearerToken(request.Values("authorization")); given {
		return a.tokenCaller(ctx, token, request)
	}
	if request.TLS == nil || len(request.TLS.VerifiedChains) == 0 {
		return &Caller{Peer: Anonymous()}, nil
	}
	caller, err := a.certificates.caller(request.TLS, a.cfg)
	if err != nil && request.Connections != nil {
		request.Connections.Refused(request.Connection)
	}
	return caller, err
}

func (a *Authenticator) tokenCaller(ctx context.Context, token string, request Request) (*Caller, error) {
	if a.cfg.Tokens == nil {
		return nil, NotAuthenticated("this server takes no bearer tokens; use a client certificate")
	}
	if len(token) > MaxTokenBytes {
		return nil, NotAuthenticated(fmt.Sprintf("the bearer token has %d bytes, and Trivet's servers take %d; use one that names fewer groups", len(token), MaxTokenBytes))
	}
	reviewed, err := a.cfg.Tokens.Review(ctx, token, request.Address)
	if err != nil {
		return nil, err
	}
	if request.Connections != nil {
		request.Connections.Known(request.Connection)
	}
	return &Caller{Credential: Token, Peer: reviewed.User, Stale: reviewed.Stale, Recheck: func(ctx context.Context) error {
		return a.cfg.Tokens.Recheck(ctx, token)
	}}, nil
}

// bearerToken returns the token of an Authorization header. Another scheme is none of ours.
func bearerToken(headers []string) (token string, given bool) {
	for _, header := range headers {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(header), " ")
		if strings.EqualFold(scheme, "bearer") {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}

// NotAuthenticated returns the status of a call whose credentials do not count.
func NotAuthenticated(why string) error {
	return rpcerror.New(codes.Unauthenticated, rpcerror.NotAuthenticatedReason, why)
}
