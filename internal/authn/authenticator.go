package authn

import (
	"context"
	"crypto/tls"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// maxCertificateLife keeps the end of a certificate that never expires within the range of a
// time.Duration.
const maxCertificateLife = 100 * 365 * 24 * time.Hour

// Config configures an Authenticator.
type Config struct {
	// GatewayGroup and ServerGroup are the groups in the certificates of gateways and of servers.
	// Without a group, no peer has that role.
	GatewayGroup, ServerGroup string
	// Tokens reviews bearer tokens; nil refuses them all.
	Tokens TokenReviewer
}

// TokenReviewer finds the user of a bearer token. It is safe for concurrent use. An error of
// code Unauthenticated means that the token is not valid; any other error, that it could not be
// reviewed.
type TokenReviewer interface {
	Review(ctx context.Context, token string) (User, error)
}

// Request has the credentials of one call.
type Request struct {
	// TLS is the verified connection; nil without TLS.
	TLS *tls.ConnectionState
	// Address is the network address of the peer.
	Address string
	// Values returns the values of a header or of a metadata key, which is given in lower case.
	Values func(key string) []string
}

// Authenticator finds the caller of a call. It is safe for concurrent use.
type Authenticator struct{ cfg Config }

// New returns an Authenticator. It contacts no server.
func New(cfg Config) *Authenticator { return &Authenticator{cfg: cfg} }

// Authenticate returns the caller of a call, which is anonymous without credentials. The error is a
// gRPC status: NOT_AUTHENTICATED, or why a credential could not be reviewed.
func (a *Authenticator) Authenticate(ctx context.Context, request Request) (*Caller, error) {
	caller, err := a.peer(ctx, request)
	if err != nil {
		return nil, err
	}
	caller.Address = request.Address
	caller.User = caller.Peer
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
		return a.tokenCaller(ctx, token)
	}
	if request.TLS == nil || len(request.TLS.VerifiedChains) == 0 {
		return &Caller{Peer: Anonymous()}, nil
	}
	leaf := request.TLS.VerifiedChains[0][0]
	if leaf.Subject.CommonName == "" {
		return nil, NotAuthenticated("the client certificate has no common name, which is the name of the user")
	}
	caller := &Caller{Credential: Certificate, Peer: User{
		Name: leaf.Subject.CommonName, Groups: append(leaf.Subject.Organization[:len(leaf.Subject.Organization):len(leaf.Subject.Organization)], AuthenticatedGroup),
	}}
	switch {
	case a.cfg.GatewayGroup != "" && caller.Peer.In(a.cfg.GatewayGroup):
		caller.Role = Gateway
	case a.cfg.ServerGroup != "" && caller.Peer.In(a.cfg.ServerGroup):
		caller.Role = Server
	}
	now := time.Now()
	caller.Expires = now.Add(min(leaf.NotAfter.Sub(now), maxCertificateLife))
	return caller, nil
}

func (a *Authenticator) tokenCaller(ctx context.Context, token string) (*Caller, error) {
	if a.cfg.Tokens == nil {
		return nil, NotAuthenticated("this server takes no bearer tokens; use a client certificate")
	}
	user, err := a.cfg.Tokens.Review(ctx, token)
	if err != nil {
		return nil, err
	}
	return &Caller{Credential: Token, Peer: user, Recheck: func(ctx context.Context) error {
		_, err := a.cfg.Tokens.Review(ctx, token)
		return err
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
