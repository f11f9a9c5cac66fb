package rpcserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/review"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// reviewingChain asks a kube-apiserver that says yes, and counts its requests.
func reviewingChain(t testing.TB) (c chain, requests func() int) {
	t.Helper()
	kube := fake.NewClientset()
	kube.PrependReactor("create", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(kubetesting.CreateAction)
		switch asked := create.GetObject().(type) {
		case *authenticationv1.TokenReview:
			asked.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"trivet"}, User: authenticationv1.UserInfo{
				Username: "system:serviceaccount:trivet-system:reader", UID: "3a1ed6a7-6f6c-4b5b-9a50-5a1f1f0f0e5c",
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:trivet-system", "system:authenticated"},
				Extra: map[string]authenticationv1.ExtraValue{
					"authentication.kubernetes.io/credential-id": {"JTI=0e1f4f4c-6f5c-4a9a-8f3e-2f5f3b1b7c11"},
					"authentication.kubernetes.io/node-name":     {"node-1"},
					"authentication.kubernetes.io/node-uid":      {"b1d2c6f0-9d1e-4a5f-8c43-1f3b6f6f2d10"},
					"authentication.kubernetes.io/pod-name":      {"reader-7d9c5b8f4-x2x9q"},
					"authentication.kubernetes.io/pod-uid":       {"6c0c2f0a-0a4e-4b25-bb1b-9df0f1a7d3c2"},
				},
			}}
			return true, asked, nil
		case *authorizationv1.SubjectAccessReview:
			asked.Status.Allowed = true
			return true, asked, nil
		}
		return false, nil, nil
	})
	metrics, err := review.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens := authn.NewTokens(authn.TokensConfig{Client: kube.AuthenticationV1().TokenReviews(), Audiences: []string{"trivet"}, Metrics: metrics})
	access := authz.NewAccessReviews(kube.AuthorizationV1().SubjectAccessReviews(), metrics)
	t.Cleanup(tokens.Close)
	t.Cleanup(access.Close)
	table := quota.Methods()
	for name, limit := range table { // the limits count, and do not end the benchmark
		limit.Rate, limit.Burst = 1e9, 1e9
		table[name] = limit
	}
	limits, err := quota.New(table, nil)
	if err != nil {
		t.Fatal(err)
	}
	c = testChain(t)
	c.authenticator = authn.New(authn.Config{GatewayGroup: "trivet:gateways", ServerGroup: "trivet:servers", Tokens: tokens})
	c.authorizer, c.quota = authz.New(access), limits
	return c, func() int { return len(kube.Actions()) }
}

// testChain has the rules of leases and authorizes nothing.
func testChain(t testing.TB) chain {
	t.Helper()
	rules := newRules(nil)
	if err := rules.compile([]string{leasev1.LeaseService_ServiceDesc.ServiceName}); err != nil {
		t.Fatal(err)
	}
	metrics, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return chain{logger: slog.New(slog.DiscardHandler), rules: rules, metrics: metrics, answers: newAnswers(), stopping: context.Background()}
}

// callBy is the context of a call over TLS, with a certificate unless a token is given.
func callBy(t testing.TB, token string) context.Context {
	t.Helper()
	headers := metadata.Pairs(":authority", "leasesvc", "content-type", "application/grpc", "user-agent", "grpc-go/1.85.0")
	var state tls.ConnectionState
	if token != "" {
		headers.Set("authorization", "Bearer "+token)
	} else {
		authority, err := certs.NewAuthority("a", certs.AuthorityLifetime, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pair, err := authority.Issue(certs.ClientLeaf("ann", "team"), certs.LeafLifetime, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(pair.CertPEM)
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		state.PeerCertificates, state.VerifiedChains = []*x509.Certificate{leaf}, [][]*x509.Certificate{{leaf}}
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, AuthInfo: credentials.TLSInfo{State: state}})
	return metadata.NewIncomingContext(ctx, headers)
}

// A unary call whose answers are kept: what identification, limits and rights cost it.
func BenchmarkGuard_KeptDecision(b *testing.B) {
	token := "eyJhbGciOiJSUzI1NiIsImtpZCI6I" + string(make([]byte, 900))
	for _, c := range []struct{ name, token string }{{"off", ""}, {"certificate", ""}, {"token of 900 bytes", token}} {
		b.Run(c.name, func(b *testing.B) {
			chain, requests := testChain(b), func() int { return 0 }
			if c.name != "off" {
				chain, requests = reviewingChain(b)
			}
			encoded, err := proto.Marshal(&leasev1.GetLeaseRequest{Name: "namespaces/kube-node-lease/leases/node-1"})
			if err != nil {
				b.Fatal(err)
			}
			receive := func(message any) error {
				return newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, message)
			}
			ctx := context.WithValue(callBy(b, c.token), receiveKey{}, receive)
			info := &grpc.UnaryServerInfo{FullMethod: leasev1.LeaseService_GetLease_FullMethodName}
			request := &leasev1.GetLeaseRequest{}
			handler := func(context.Context, any) (any, error) { return nil, nil }
			b.ReportAllocs()
			begun := cpuTime(b)
			for b.Loop() {
				ctx, _, _ := chain.identify(ctx, info.FullMethod)
				if _, err := chain.guardUnary(ctx, request, info, handler); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N), "cpu-ns/op") // counts also on a busy machine
			b.ReportMetric(float64(requests()), "requests-to-kube-apiserver")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
