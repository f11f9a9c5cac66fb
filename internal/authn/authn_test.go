package authn_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/review"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

func authority(t *testing.T, name string) *certs.Authority {
	t.Helper()
	made, err := certs.NewAuthority(name, certs.AuthorityLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// connection is a verified connection with a client certificate.
func connection(t *testing.T, from *certs.Authority, leaf certs.Leaf, life time.Duration) *tls.ConnectionState {
	t.Helper()
	pair, err := from.Issue(leaf, life, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.CertPEM)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}, VerifiedChains: [][]*x509.Certificate{{certificate}}}
}

func request(state *tls.ConnectionState, headers ...string) authn.Request {
	values := metadata.Pairs(headers...)
	return authn.Request{TLS: state, Address: "192.0.2.1:4", Values: values.Get}
}

func TestAuthenticate_Certificates(t *testing.T) {
	trivet, cluster := authority(t, "trivet"), authority(t, "cluster")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trivet.CertPEM())
	callers := authn.New(authn.Config{
		GatewayGroup: "trivet:gateways", ServerGroup: "trivet:servers", PeerAuthorities: func() *x509.CertPool { return pool },
	})
	gateway, server := certs.ServerLeaf("gateway", "n", "d"), certs.ServerLeaf("leasesvc", "n", "d")
	for name, c := range map[string]struct {
		from      *certs.Authority
		leaf      certs.Leaf
		headers   []string
		wantUser  string
		groups    []string
		role      authn.Role
		forwarded bool
	}{
		"person":                      {cluster, certs.ClientLeaf("ann", "a", "b"), nil, "ann", []string{"a", "b", "system:authenticated"}, authn.Client, false},
		"node":                        {cluster, certs.NodeLeaf("n1"), nil, "system:node:n1", []string{"system:nodes", "system:authenticated"}, authn.Client, false},
		"gateway":                     {trivet, gateway, nil, "trivet:gateway", []string{"trivet:gateways", "system:authenticated"}, authn.Gateway, false},
		"server":                      {trivet, server, nil, "trivet:leasesvc", []string{"trivet:servers", "system:authenticated"}, authn.Server, false},
		"gateway of the cluster's CA": {cluster, gateway, []string{"x-remote-user", "ann"}, "trivet:gateway", []string{"system:authenticated"}, authn.Client, false},
		"server of the cluster's CA":  {cluster, server, nil, "trivet:leasesvc", []string{"system:authenticated"}, authn.Client, false},
		"gateway that forwards":       {trivet, gateway, []string{"x-remote-user", "b%C3%B6b", "x-remote-group", "a%2Fb", "x-remote-group", "c"}, "böb", []string{"a/b", "c"}, authn.Gateway, true},
		"server that forwards":        {trivet, server, []string{"x-remote-user", "ann"}, "trivet:leasesvc", []string{"trivet:servers", "system:authenticated"}, authn.Server, false},
		"person that forwards":        {trivet, certs.ClientLeaf("eve"), []string{"x-remote-user", "ann", "x-remote-group", "system:masters"}, "eve", []string{"system:authenticated"}, authn.Client, false},
	} {
		t.Run(name, func(t *testing.T) {
			state := connection(t, c.from, c.leaf, time.Hour)
			for range 2 { // the second call finds the certificate in memory
				caller, err := callers.Authenticate(t.Context(), request(state, c.headers...))
				if err != nil {
					t.Fatal(err)
				}
				if caller.User.Name != c.wantUser || caller.Role != c.role || caller.Forwarded != c.forwarded || !slices.Equal(caller.User.Groups, c.groups) {
					t.Errorf("caller = %+v, want %s of %v with role %v, forwarded %t", caller, c.wantUser, c.groups, c.role, c.forwarded)
				}
			}
		})
	}
}

func TestAuthenticate_RoleFollowsTheAuthoritiesOfPeers(t *testing.T) {
	trivet, next := authority(t, "trivet"), authority(t, "next")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trivet.CertPEM())
	callers := authn.New(authn.Config{GatewayGroup: "trivet:gateways", PeerAuthorities: func() *x509.CertPool { return pool }})
	state := connection(t, trivet, certs.ServerLeaf("gateway", "n", "d"), time.Hour)
	role := func() authn.Role {
		caller, err := callers.Authenticate(t.Context(), request(state))
		if err != nil {
			t.Fatal(err)
		}
		return caller.Role
	}
	if got := role(); got != authn.Gateway {
		t.Fatalf("role = %v, want a gateway", got)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(next.CertPEM())
	if got := role(); got != authn.Client {
		t.Errorf("role = %v after the authority was removed, want a client", got)
	}
}

func TestAuthenticate_RemovedAuthorityEndsTheCertificatesOfOpenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former, next := authority(t, "former"), authority(t, "next")
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(former.CertPEM())
		callers := authn.New(authn.Config{ClientAuthorities: func() *x509.CertPool { return pool }})
		state := connection(t, former, certs.ClientLeaf("ann"), time.Hour)
		caller, err := callers.Authenticate(t.Context(), request(state))
		if err != nil {
			t.Fatal(err)
		}
		if err := caller.Recheck(t.Context()); err != nil {
			t.Errorf("Recheck() = %v, want nil", err)
		}
		pool = x509.NewCertPool()
		pool.AppendCertsFromPEM(next.CertPEM())
		begun := time.Now()
		if err := caller.Await(t.Context()); status.Code(err) != codes.Unauthenticated || time.Since(begun) > 5*time.Second {
			t.Errorf("Await() = %v after %v, want NOT_AUTHENTICATED within 5 s", err, time.Since(begun))
		}
		told, asked := known{}, request(state)
		asked.Connections, asked.Connection = told, &net.TCPAddr{}
		told.Known(asked.Connection)
		for range 2 {
			if _, err := callers.Authenticate(t.Context(), asked); rpcerror.ReasonOf(err) != rpcerror.NotAuthenticatedReason || !strings.Contains(err.Error(), "authority") {
				t.Errorf("a call on the open connection: %v, want NOT_AUTHENTICATED", err)
			}
		}
		if len(told) != 0 {
			t.Error("nothing ends the open connection, so that the client could use its next certificate")
		}
	})
}

// A person may be in hundreds of groups. More than a gateway can name are refused with the cause.
func TestForward_NamesFiveHundredGroups(t *testing.T) {
	for name, c := range map[string]struct {
		groups int
		byte   string
		want   bool
	}{
		"500 groups": {500, "g", true}, "500 groups, escaped": {500, "/", true}, "5000 groups": {5000, "g", false},
	} {
		t.Run(name, func(t *testing.T) {
			user := authn.User{Name: "ann"}
			for range c.groups {
				user.Groups = append(user.Groups, strings.Repeat(c.byte, 64))
			}
			callers := authn.New(authn.Config{Tokens: oneUser(user)})
			_, err := callers.Authenticate(t.Context(), request(nil, "authorization", "Bearer x"))
			if (err == nil) != c.want || err != nil && !strings.Contains(err.Error(), "5000 groups") {
				t.Errorf("Authenticate() = %v, want it to be accepted: %t", err, c.want)
			}
			size := 0
			sent, _ := metadata.FromOutgoingContext(authn.Forward(t.Context(), user))
			for key, values := range sent {
				for _, value := range values {
					size += len(key) + len(value) + 32
				}
			}
			if (size <= authn.MaxForwardedBytes) != c.want {
				t.Errorf("the headers have %d bytes", size)
			}
		})
	}
}

// oneUser is a TokenReviewer that knows one user.
type oneUser authn.User

func (o oneUser) Review(context.Context, string, string) (authn.TokenUser, error) {
	return authn.TokenUser{User: authn.User(o)}, nil
}

func (oneUser) Recheck(context.Context, string) error { return nil }

func TestAuthenticate_EndedCertificateIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		callers := authn.New(authn.Config{})
		state := connection(t, authority(t, "a"), certs.ClientLeaf("ann"), time.Hour)
		caller, err := callers.Authenticate(t.Context(), request(state))
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := caller.Await(t.Context()); status.Code(err) != codes.Unauthenticated || time.Since(begun) > time.Hour {
			t.Errorf("Await() = %v after %v, want NOT_AUTHENTICATED within an hour", err, time.Since(begun))
		}
		if _, err := callers.Authenticate(t.Context(), request(state)); rpcerror.ReasonOf(err) != rpcerror.NotAuthenticatedReason {
			t.Errorf("a call on the old connection: %v, want NOT_AUTHENTICATED", err)
		}
	})
}

func TestForward_IsReadBackByTheServer(t *testing.T) {
	callers := authn.New(authn.Config{GatewayGroup: "trivet:gateways"})
	state := connection(t, authority(t, "a"), certs.ServerLeaf("gateway", "n", "d"), time.Hour)
	user := authn.User{Name: "ö=%\x00,/ü", UID: "1=2", Groups: []string{"a,b", "", "c=d"}, Extra: map[string][]string{"k=/": {"v=1", ""}}}
	before := metadata.AppendToOutgoingContext(t.Context(), "x-remote-user", "eve", "x-remote-group", "system:masters")
	sent, _ := metadata.FromOutgoingContext(authn.ForwardFrom(before, "gateway-1", user))
	caller, err := callers.Authenticate(t.Context(), authn.Request{TLS: state, Values: sent.Get})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(user, caller.User); diff != "" || caller.Gateway != "gateway-1" {
		t.Errorf("forwarded by %q (-sent +read):\n%s", caller.Gateway, diff)
	}
}

// tokens reviews by answer, and counts the reviews.
func tokens(t *testing.T, answer func(*authenticationv1.TokenReview) error) (reviewer *authn.Tokens, reviews func() int) {
	t.Helper()
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(kubetesting.CreateAction)
		asked, _ := create.GetObject().(*authenticationv1.TokenReview)
		reviewed := asked.DeepCopy()
		return true, reviewed, answer(reviewed)
	})
	metrics, err := review.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	reviewer = authn.NewTokens(authn.TokensConfig{Client: kube.AuthenticationV1().TokenReviews(), Audiences: []string{"trivet"}, Metrics: metrics})
	t.Cleanup(reviewer.Close)
	return reviewer, func() int { return len(kube.Actions()) }
}

func TestReview_OnlyTokensThatAreNotValidCount(t *testing.T) {
	metrics, err := review.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(kubetesting.CreateAction)
		asked, _ := create.GetObject().(*authenticationv1.TokenReview)
		reply := asked.DeepCopy()
		switch asked.Spec.Token {
		case "good":
			reply.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"trivet"}, User: authenticationv1.UserInfo{Username: "a"}}
		case "unknown":
			return true, nil, errors.New("connection refused")
		}
		return true, reply, nil
	})
	got := map[bool]int{}
	reviewer := authn.NewTokens(authn.TokensConfig{
		Client: kube.AuthenticationV1().TokenReviews(), Audiences: []string{"trivet"}, Metrics: metrics,
		Admit: func(string) (func(bool), error) { return func(valid bool) { got[valid]++ }, nil },
	})
	for _, token := range []string{"good", "bad", "unknown"} {
		_, _ = reviewer.Review(t.Context(), token, "10.0.0.1:1")
	}
	reviewer.Close()
	if got[true] != 1 || got[false] != 2 {
		t.Errorf("%d valid tokens and %d others, want 1 and 2", got[true], got[false])
	}
}

func TestReview_Answers(t *testing.T) {
	node := map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {"n1"}}
	user := authenticationv1.UserInfo{Username: "system:serviceaccount:a:b", UID: "1", Groups: []string{"g"}, Extra: node}
	for name, c := range map[string]struct {
		status authenticationv1.TokenReviewStatus
		err    error
		want   codes.Code
	}{
		"valid":                 {authenticationv1.TokenReviewStatus{Authenticated: true, User: user, Audiences: []string{"x", "trivet"}}, nil, codes.OK},
		"of another audience":   {authenticationv1.TokenReviewStatus{Authenticated: true, User: user, Audiences: []string{"https://kubernetes"}}, nil, codes.Unauthenticated},
		"without any audience":  {authenticationv1.TokenReviewStatus{Authenticated: true, User: user}, nil, codes.Unauthenticated},
		"not valid":             {authenticationv1.TokenReviewStatus{Error: "expired", Audiences: []string{"trivet"}}, nil, codes.Unauthenticated},
		"without a user":        {authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"trivet"}}, nil, codes.Unauthenticated},
		"kube-apiserver absent": {authenticationv1.TokenReviewStatus{}, errors.New("refused canary"), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			reviewer, reviews := tokens(t, func(r *authenticationv1.TokenReview) error {
				if r.Spec.Token != "canary" || !slices.Equal(r.Spec.Audiences, []string{"trivet"}) {
					t.Errorf("asked about %v", r.Spec.Audiences)
				}
				r.Status = c.status
				return c.err
			})
			got, err := reviewer.Review(t.Context(), "canary", "")
			if status.Code(err) != c.want {
				t.Fatalf("Review() = %v, want %v", err, c.want)
			}
			if err == nil {
				want := authn.User{Name: user.Username, UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}}}
				if diff := cmp.Diff(want, got.User); diff != "" {
					t.Errorf("user (-want +got):\n%s", diff)
				}
			} else if strings.Contains(err.Error(), "canary") {
				t.Errorf("the error has the token: %v", err)
			}
			if _, again := reviewer.Review(t.Context(), "canary", ""); status.Code(again) != c.want {
				t.Errorf("the second Review() = %v, want %v", again, c.want)
			}
			want := 1
			if c.err != nil {
				want = 2 // errors are not kept
			}
			if got := reviews(); got != want {
				t.Errorf("%d reviews of two calls, want %d", got, want)
			}
		})
	}
}

// Random tokens of one address are no load on the kube-apiserver; valid ones go on.
func TestReview_UnknownTokensNeedAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		kube.PrependReactor("create", "tokenreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
			create, _ := action.(kubetesting.CreateAction)
			asked, _ := create.GetObject().(*authenticationv1.TokenReview)
			valid := asked.Spec.Token == "valid"
			asked.Status = authenticationv1.TokenReviewStatus{Authenticated: valid, Audiences: []string{"trivet"}, User: authenticationv1.UserInfo{Username: "ann"}}
			return true, asked, nil
		})
		metrics, err := review.NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		admitted, running := 0, 0
		reviewer := authn.NewTokens(authn.TokensConfig{
			Client: kube.AuthenticationV1().TokenReviews(), Audiences: []string{"trivet"}, Metrics: metrics,
			Admit: func(address string) (func(bool), error) {
				if admitted == 3 || address != "192.0.2.1:4" {
					return nil, rpcerror.New(codes.ResourceExhausted, "TOO_MANY_CALLS", "of "+address)
				}
				admitted++
				running++
				return func(bool) { running-- }, nil
			},
		})
		defer reviewer.Close()
		code := func(token string) codes.Code {
			_, err := reviewer.Review(t.Context(), token, "192.0.2.1:4")
			return status.Code(err)
		}
		got := []codes.Code{code("valid"), code("random 1"), code("random 2"), code("random 3"), code("random 2")}
		want := []codes.Code{codes.OK, codes.Unauthenticated, codes.Unauthenticated, codes.ResourceExhausted, codes.Unauthenticated}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("five calls (-want +got):\n%s", diff)
		}
		time.Sleep(15 * time.Second)
		if got := code("valid"); got != codes.OK || running != 0 {
			t.Errorf("the valid token, reviewed again: %v with %d admissions not ended, want OK and 0", got, running)
		}
	})
}

// A token that is too long causes no review, and one that was accepted is told to the connections.
func TestAuthenticate_LengthOfTokens(t *testing.T) {
	for length, want := range map[int]codes.Code{45 << 10: codes.OK, authn.MaxTokenBytes: codes.OK, authn.MaxTokenBytes + 1: codes.Unauthenticated} {
		reviewer, reviews := tokens(t, func(r *authenticationv1.TokenReview) error {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"trivet"}, User: authenticationv1.UserInfo{Username: "ann"}}
			return nil
		})
		told, asked := known{}, request(nil, "authorization", "Bearer "+strings.Repeat("t", length))
		asked.Connections, asked.Connection = told, &net.TCPAddr{}
		_, err := authn.New(authn.Config{Tokens: reviewer}).Authenticate(t.Context(), asked)
		accepted := 0
		if want == codes.OK {
			accepted = 1
		}
		if status.Code(err) != want || reviews() != accepted || len(told) != accepted {
			t.Errorf("%d bytes: %v after %d reviews, %d connections were told; want %v, %d and %d", length, err, reviews(), len(told), want, accepted, accepted)
		}
	}
}

// known are the connections with an identity.
type known map[net.Addr]bool

func (k known) Known(local net.Addr) { k[local] = true }

func (k known) Refused(local net.Addr) { delete(k, local) }

func TestAwait_RevokedTokenEndsAndErrorsDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer error
		caller := &authn.Caller{Recheck: func(context.Context) error { return answer }}
		answer = status.Error(codes.Unavailable, "away")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := caller.Await(ctx); err != nil {
			t.Fatalf("Await() = %v while no token can be reviewed, want the end of the context", err)
		}
		answer = authn.NotAuthenticated("revoked")
		begun := time.Now()
		if err := caller.Await(t.Context()); status.Code(err) != codes.Unauthenticated || time.Since(begun) > 10*time.Second {
			t.Errorf("Await() = %v after %v, want NOT_AUTHENTICATED within 10 s", err, time.Since(begun))
		}
	})
}

func TestRedact_ReplacesTokensOnly(t *testing.T) {
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9m"
	for text, want := range map[string]string{
		"":                             "",
		"namespaces/a/leases/eyJ":      "namespaces/a/leases/eyJ",
		"namespaces/a/" + token + `"x`: `namespaces/a/<token>"x`,
		"node-a.example.org":           "node-a.example.org",
	} {
		if got := authn.Redact(text); got != want {
			t.Errorf("Redact(%q) = %q, want %q", text, got, want)
		}
	}
}
