// Package httpaccesstest has a server's authority and callers with different rights, for tests of
// HTTP and gRPC servers. Reviews are decided by a table instead of a kube-apiserver.
package httpaccesstest

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// Caller is the sender of a request.
type Caller string

// Callers. Viewer has a bearer token and may read, Admin has a certificate and may do everything,
// Stranger has a certificate and no right, Forger has an invalid token.
const (
	None     Caller = "none"
	Stranger Caller = "stranger"
	Forger   Caller = "forger"
	Viewer   Caller = "viewer"
	Admin    Caller = "admin"
)

// Callers returns all callers.
func Callers() []Caller { return []Caller{None, Stranger, Forger, Viewer, Admin} }

// AdminGroup is the group of Admin.
const AdminGroup = "admins"

// Fixture has the access of one server and the credentials of its callers.
type Fixture struct {
	Authority     *identitytest.Authority
	Authenticator *authn.Authenticator
	Authorizer    *authz.Authorizer
	Access        *httpaccess.Access
	certificates  map[Caller]tls.Certificate
}

// New returns a Fixture whose server has the name "server".
func New(t testing.TB) *Fixture {
	t.Helper()
	return NewWith(t, table{})
}

// NewWith is New with other rights.
func NewWith(t testing.TB, reviewer authz.Reviewer) *Fixture {
	t.Helper()
	f := &Fixture{Authority: identitytest.NewAuthority(t, "authority"), Authorizer: authz.New(reviewer)}
	f.certificates = map[Caller]tls.Certificate{
		Stranger: f.Authority.Certificate(t, string(Stranger)),
		Admin:    f.Authority.Certificate(t, string(Admin), AdminGroup),
	}
	f.Authenticator = authn.New(authn.Config{
		GatewayGroup: certs.GatewayGroup, ServerGroup: certs.ServerGroup, Tokens: tokens{},
	})
	f.Access = httpaccess.New(httpaccess.Config{
		TLS: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{f.Authority.Certificate(t, "server")},
			ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: f.Authority.Pool(),
		},
		Authenticator: f.Authenticator, Authorizer: f.Authorizer,
		Refused: func(*http.Request, *authn.Caller, error) {},
	})
	return f
}

// Client returns the HTTP client of a caller. It keeps no connections.
func (f *Fixture) Client(caller Caller) *http.Client {
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: f.Authority.Pool()}
	if certificate, has := f.certificates[caller]; has {
		config.Certificates = []tls.Certificate{certificate}
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	return &http.Client{Transport: withToken{caller: caller, next: transport}, Timeout: 10 * time.Second}
}

// Token returns the bearer token of a caller, or "".
func Token(caller Caller) string {
	if caller == Viewer || caller == Forger {
		return string(caller) + "-token"
	}
	return ""
}

type withToken struct {
	caller Caller
	next   http.RoundTripper
}

// RoundTrip adds the token of the caller.
func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if token := Token(w.caller); token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return w.next.RoundTrip(r)
}

// tokens knows the token of Viewer only.
type tokens struct{}

func (tokens) Review(_ context.Context, token, _ string) (authn.TokenUser, error) {
	if token != Token(Viewer) {
		return authn.TokenUser{}, authn.NotAuthenticated("the token is not valid")
	}
	return authn.TokenUser{User: authn.User{Name: string(Viewer), Groups: []string{authn.AuthenticatedGroup}}}, nil
}

func (t tokens) Recheck(ctx context.Context, token string) error {
	_, err := t.Review(ctx, token, "")
	return err
}

// table lets administrators do everything and the viewer read.
type table struct{}

func (table) Review(_ context.Context, user authn.User, asked authz.Attributes) (authz.Decision, error) {
	isReader := user.Name == string(Viewer) && asked.IsRead()
	return authz.Decision{Allowed: isReader || slices.Contains(user.Groups, AdminGroup)}, nil
}
