// Package httpaccesstest has a server's authority and callers with different rights, for tests of
// HTTP and gRPC servers. Reviews are decided by a table instead of a kube-apiserver.
package httpaccesstest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/connlimit"
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
	config        httpaccess.Config
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
	f.config = httpaccess.Config{
		TLS: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{f.Authority.Certificate(t, "server")},
			ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: f.Authority.Pool(),
		},
		Authenticator: f.Authenticator, Authorizer: f.Authorizer,
		Refused: func(*http.Request, *authn.Caller, error) {},
	}
	f.Access = httpaccess.New(f.config)
	return f
}

// OnePlaceForStrangers limits the connections of Access so that one without an identity may be
// open.
func (f *Fixture) OnePlaceForStrangers(t testing.TB) {
	t.Helper()
	limiter, err := connlimit.New(connlimit.Config{MaxConnections: 4}, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	f.config.Connections = limiter
	f.Access = httpaccess.New(f.config)
}

// CheckPlaces checks that a server with OnePlaceForStrangers, at host:port, takes a connection for
// that of an identity once a token was accepted on it, and that a probe without an identity keeps
// no connection. Viewer may get the path.
func (f *Fixture) CheckPlaces(t testing.TB, address, path string) {
	t.Helper()
	connect := func() *tls.Conn {
		t.Helper()
		conn, err := tls.Dial("tcp", address, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: f.Authority.Pool()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
		if err := conn.SetDeadline(time.Now().Add(8 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	get := func(conn *tls.Conn, path string, caller Caller) (code int, closes bool) {
		t.Helper()
		authorization := ""
		if token := Token(caller); token != "" {
			authorization = "Authorization: Bearer " + token + "\r\n"
		}
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, authorization); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("GET %s by %s: %v", path, caller, err)
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, response.Close
	}
	known := connect()
	if code, closes := get(known, path, Viewer); code != http.StatusOK || closes {
		t.Errorf("GET %s with a token: %d, connection closes: %t", path, code, closes)
	}
	first := connect()
	if code, closes := get(first, path, None); code != http.StatusUnauthorized || closes {
		t.Errorf("GET %s without a credential: %d, connection closes: %t", path, code, closes)
	}
	second := connect()
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first stranger, after the second one came: %v, want its connection to end", err)
	}
	if code, _ := get(known, path, Viewer); code != http.StatusOK {
		t.Errorf("GET %s with a token, again: %d", path, code)
	}
	if code, closes := get(second, "/livez", None); code != http.StatusOK || !closes {
		t.Errorf("a probe: %d, connection closes: %t; want 200 and true", code, closes)
	}
}

// CheckLongTokens checks that a URL takes a token that names 500 groups of 64 bytes, and says why
// it refuses a longer one.
func (f *Fixture) CheckLongTokens(t testing.TB, url string) {
	t.Helper()
	for length, want := range map[int]string{
		45 << 10: "the token is not valid", authn.MaxTokenBytes + 1: "the bearer token has 65537 bytes", authn.MaxHeaderBytes - 1<<10: "use one that names fewer groups",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.Repeat("t", length))
		response, err := f.Client(None).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), want) {
			t.Errorf("a token of %d bytes: %s %s (%v), want 401 and %q", length, response.Status, text, err, want)
		}
	}
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
