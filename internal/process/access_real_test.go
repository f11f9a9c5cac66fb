package process

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// guarded is a process with TLS whose kube-apiserver is behind a proxy.
type guarded struct {
	t         *testing.T
	kube      kubernetes.Interface
	namespace string
	proxy     *faultproxy.KubeProxy
	authority *certs.Authority
	process   *Process
	log       testkit.LogBuffer
	auditFile string
	// peers is how the process dials other servers, with the certificates in pair.
	peers rpcclient.Config
	pair  identity.Files
}

// slicesOf serves slices that no handler computes: a call that reaches it ends with UNIMPLEMENTED,
// and a watch lasts.
type slicesOf struct {
	*recorder
	slicev1.UnimplementedSliceServiceServer
}

func (s slicesOf) Register(r grpc.ServiceRegistrar) { slicev1.RegisterSliceServiceServer(r, s) }

func (s slicesOf) WatchServiceSlices(_ *slicev1.WatchServiceSlicesRequest, stream grpc.ServerStreamingServer[slicev1.WatchServiceSlicesResponse]) error {
	if err := stream.Send(&slicev1.WatchServiceSlicesResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func startGuarded(t *testing.T) *guarded {
	g := &guarded{t: t, kube: testkit.Kube(t), proxy: faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())}
	g.namespace = testkit.Namespace(t, g.kube)
	authority, err := certs.NewAuthority("trivet", certs.AuthorityLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	g.authority = authority
	cfg := config("http://127.0.0.1:1")
	g.pair = g.files(certs.ServerLeaf("slicesvc", "trivet-system", "cluster.local"))
	cfg.RPC.Insecure, cfg.RPC.TLS = false, g.pair
	cfg.Kube.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"proxy": {Server: g.proxy.RESTConfig().Host}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"proxy": {}},
		Contexts:       map[string]*clientcmdapi.Context{"proxy": {Cluster: "proxy", AuthInfo: "proxy"}},
		CurrentContext: "proxy",
	}, cfg.Kube.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	g.auditFile = filepath.Join(t.TempDir(), "audit.log")
	cfg.Audit.File = g.auditFile
	served := program(&recorder{})
	build := served.Build
	served.Build = func(deps Deps) (Service, error) {
		g.peers = deps.Peers
		built, err := build(deps)
		r, _ := built.(*recorder)
		return slicesOf{recorder: r}, err
	}
	logger := slog.New(slog.NewTextHandler(&g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if g.process, err = New(cfg, served, logger); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.process.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return g
}

func (g *guarded) files(leaf certs.Leaf) identity.Files {
	g.t.Helper()
	pair, err := g.authority.Issue(leaf, certs.LeafLifetime, time.Now())
	if err != nil {
		g.t.Fatal(err)
	}
	dir := g.t.TempDir()
	files := identity.Files{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), CAFile: filepath.Join(dir, "ca.crt")}
	for path, content := range map[string][]byte{files.CertFile: pair.CertPEM, files.KeyFile: pair.KeyPEM, files.CAFile: g.authority.CertPEM()} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	return files
}

// metrics are what another server reads: it needs no right for that.
func (g *guarded) metrics() string {
	g.t.Helper()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: g.tls("trivet:leasesvc", "trivet:servers"), DisableKeepAlives: true}}
	reply, err := client.Get("https://" + g.process.Member().AdminAddress + "/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(text)
}

// as is a client with a certificate of user, or without one.
func (g *guarded) as(user string, groups ...string) slicev1.SliceServiceClient {
	g.t.Helper()
	return slicev1.NewSliceServiceClient(g.connect(user, groups...))
}

func (g *guarded) connect(user string, groups ...string) *grpc.ClientConn {
	g.t.Helper()
	connection, err := grpc.NewClient(g.process.Member().GRPCAddress, grpc.WithTransportCredentials(credentials.NewTLS(g.tls(user, groups...))))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { connection.Close() })
	return connection
}

func (g *guarded) tls(user string, groups ...string) *tls.Config {
	g.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(g.authority.CertPEM())
	config := &tls.Config{RootCAs: pool, ServerName: "slicesvc", MinVersion: tls.VersionTLS13}
	if user != "" {
		pair, err := g.authority.Issue(certs.ClientLeaf(user, groups...), certs.LeafLifetime, time.Now())
		if err != nil {
			g.t.Fatal(err)
		}
		certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
		if err != nil {
			g.t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config
}

// serviceAccount makes an account with a Secret that tokens can be bound to, and the rights of a
// viewer of slices that may reconcile.
func (g *guarded) serviceAccount(name string) {
	g.t.Helper()
	ctx := g.t.Context()
	meta := metav1.ObjectMeta{Name: name, Namespace: g.namespace}
	_, err := g.kube.CoreV1().ServiceAccounts(g.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	if err == nil {
		_, err = g.kube.CoreV1().Secrets(g.namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// grant lets the subjects read and reconcile slices in the namespace.
func (g *guarded) grant(subjects ...rbacv1.Subject) {
	g.t.Helper()
	meta := metav1.ObjectMeta{Name: "slices", Namespace: g.namespace}
	_, err := g.kube.RbacV1().Roles(g.namespace).Create(g.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"trivet.dev"}, Resources: []string{"serviceslices"}, Verbs: []string{"get", "list", "watch", "update"}},
	}}, metav1.CreateOptions{})
	if err == nil {
		_, err = g.kube.RbacV1().RoleBindings(g.namespace).Create(g.t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "slices"},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// token asks for a token of an account that is bound to its Secret. Without audiences it is for the
// kube-apiserver.
func (g *guarded) token(account string, audiences ...string) string {
	g.t.Helper()
	seconds := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: audiences, ExpirationSeconds: &seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: account},
	}}
	reply, err := g.kube.CoreV1().ServiceAccounts(g.namespace).CreateToken(g.t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	return reply.Status.Token
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func (g *guarded) name() string { return "namespaces/" + g.namespace + "/serviceslices/a" }

// read and change return UNIMPLEMENTED if they are allowed, because no handler answers.
func (g *guarded) read(ctx context.Context, client slicev1.SliceServiceClient) error {
	_, err := client.GetServiceSlices(ctx, &slicev1.GetServiceSlicesRequest{Name: g.name()})
	return err
}

func (g *guarded) change(ctx context.Context, client slicev1.SliceServiceClient) error {
	_, err := client.ReconcileServiceSlices(ctx, &slicev1.ReconcileServiceSlicesRequest{Name: g.name()})
	return err
}

func (g *guarded) want(what string, err error, code codes.Code, reason rpcerror.Reason) {
	g.t.Helper()
	if status.Code(err) != code || reason != "" && rpcerror.ReasonOf(err) != reason {
		g.t.Errorf("%s: %v, want %v %s", what, err, code, reason)
	}
}

const allowed = codes.Unimplemented

// One process and one story, because each part needs the ten seconds that answers live.
func TestAccess_WithARealKubeAPIServer(t *testing.T) {
	testkit.LongTest(t, 3)
	t.Parallel()
	g := startGuarded(t)
	ctx := t.Context()
	for _, account := range []string{"reader", "revoked", "stranger"} {
		g.serviceAccount(account)
	}
	g.grant(rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"},
		rbacv1.Subject{Kind: "ServiceAccount", Namespace: g.namespace, Name: "reader"},
		rbacv1.Subject{Kind: "ServiceAccount", Namespace: g.namespace, Name: "revoked"})
	ann, bob, unnamed := g.as("ann"), g.as("bob"), g.as("")
	reader, revoked := g.token("reader", "trivet"), g.token("revoked", "trivet")
	stranger, forKube := g.token("stranger", "trivet"), g.token("reader")
	byReader, byRevoked := withToken(ctx, reader), withToken(ctx, revoked)

	g.want("a certificate with the right", g.read(ctx, ann), allowed, "")
	g.want("a certificate with the right to change", g.change(ctx, ann), allowed, "")
	g.want("a certificate without the right", g.read(ctx, bob), codes.PermissionDenied, rpcerror.NotAuthorizedReason)
	g.want("a token with the right", g.read(byReader, unnamed), allowed, "")
	g.want("a token that counts before a certificate", g.read(withToken(ctx, stranger), ann), codes.PermissionDenied, rpcerror.NotAuthorizedReason)
	g.want("a token for the kube-apiserver", g.read(withToken(ctx, forKube), unnamed), codes.Unauthenticated, rpcerror.NotAuthenticatedReason)
	g.want("no credential", g.read(ctx, unnamed), codes.Unauthenticated, rpcerror.NotAuthenticatedReason)
	forged := withToken(ctx, reader[:len(reader)-6]+"AAAAAA")
	g.want("a forged token", g.read(forged, unnamed), codes.Unauthenticated, rpcerror.NotAuthenticatedReason)
	claims := metadata.AppendToOutgoingContext(ctx, "x-remote-user", "ann", "x-remote-group", "system:masters")
	g.want("a stranger that claims to forward", g.read(claims, bob), codes.PermissionDenied, "")
	forwarded := metadata.AppendToOutgoingContext(ctx, "x-remote-user", "ann")
	g.want("a gateway that forwards", g.read(forwarded, g.as("trivet:gateway", "trivet:gateways")), allowed, "")
	misused := g.read(metadata.AppendToOutgoingContext(ctx, "x-remote-user", reader), bob)
	g.want("a token as a name", misused, codes.PermissionDenied, "")
	_, err := ann.GetServiceSlices(ctx, &slicev1.GetServiceSlicesRequest{Name: "namespaces/other/serviceslices/" + reader})
	g.want("a token as an object", err, codes.PermissionDenied, "")

	watch, err := unnamed.WatchServiceSlices(byRevoked, &slicev1.WatchServiceSlicesRequest{Parent: "namespaces/" + g.namespace})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := watch.Recv()
		ended <- err
	}()

	// Of connections without a certificate, those with an accepted token last.
	anonymous, err := healthv1.NewHealthClient(g.connect("")).Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan error, 1)
	go func() {
		for {
			if _, err := anonymous.Recv(); err != nil {
				cut <- err
				return
			}
		}
	}()

	reviews := func(request faultproxy.Request) bool {
		return request.Resource == "tokenreviews" || request.Resource == "subjectaccessreviews"
	}
	for _, fault := range []struct {
		name  string
		begin func() func()
	}{
		{"away", func() func() { return g.proxy.Refuse(reviews, 503, metav1.StatusReasonServiceUnavailable) }},
		{"hung", func() func() { return g.proxy.Hang(reviews) }},
	} {
		g.want("a read before", g.read(byReader, unnamed), allowed, "")
		g.want("a read before", g.read(ctx, ann), allowed, "")
		heal := fault.begin()
		time.Sleep(10500 * time.Millisecond) // the answers age
		begun := time.Now()
		g.want(fault.name+": a read by certificate", g.read(ctx, ann), allowed, "")
		g.want(fault.name+": a read by token", g.read(byReader, unnamed), allowed, "")
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("%s: two reads took %v", fault.name, took)
		}
		g.want(fault.name+": a change by certificate", g.change(ctx, ann), codes.Unavailable, rpcerror.AccessReviewUnavailableReason)
		g.want(fault.name+": a change by token", g.change(byReader, unnamed), codes.Unavailable, rpcerror.AccessReviewUnavailableReason)
		g.want(fault.name+": a denied read", g.read(ctx, bob), codes.Unavailable, rpcerror.AccessReviewUnavailableReason)
		heal()
		testkit.Eventually(t, 40*time.Second, func() error {
			if err := g.change(ctx, ann); status.Code(err) != allowed {
				return err
			}
			return nil
		})
	}
	select {
	case err := <-cut:
		g.want("a watch of health without a credential", err, codes.Unavailable, "")
	default:
		t.Error("a watch of health without a credential lasts for more than 20 s")
	}
	select {
	case err := <-ended:
		t.Errorf("the watch ended while no token could be reviewed: %v", err)
	default:
	}

	g.want("a read before the token is revoked", g.read(byRevoked, unnamed), allowed, "")
	if err := g.kube.CoreV1().Secrets(g.namespace).Delete(ctx, "revoked", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	testkit.Eventually(t, 30*time.Second, func() error {
		if err := g.read(byRevoked, unnamed); status.Code(err) != codes.Unauthenticated {
			return fmt.Errorf("the revoked token is accepted: %v", err)
		}
		return nil
	})
	// kube-apiserver itself keeps a valid token for some seconds.
	if took := time.Since(begun); took > 22*time.Second {
		t.Errorf("the revoked token was accepted for %v", took)
	}
	select {
	case err := <-ended:
		g.want("the watch of a revoked token", err, codes.Unauthenticated, rpcerror.NotAuthenticatedReason)
	case <-time.After(30 * time.Second):
		t.Error("the watch of a revoked token goes on")
	}
	g.noneOf(reader, revoked, stranger, forKube)
}

// noneOf checks that no token is in the log, the audit log or the metrics, and that these have
// lines about the calls.
func (g *guarded) noneOf(tokens ...string) {
	g.t.Helper()
	metrics := g.metrics()
	audit := func() (string, error) {
		text, err := os.ReadFile(g.auditFile)
		if err == nil && !bytes.Contains(text, []byte("watch serviceslices")) && !bytes.Contains(text, []byte("WatchServiceSlices")) {
			err = errors.New("the audit log has not the last denial yet")
		}
		return string(text), err
	}
	testkit.Eventually(g.t, time.Minute, func() error { _, err := audit(); return err })
	records, _ := audit()
	for place, text := range map[string]string{"log": g.log.String(), "audit log": records, "metrics": metrics} {
		for _, token := range tokens {
			parts := strings.Split(token, ".")
			for _, secret := range []string{token, parts[len(parts)-1]} {
				if strings.Contains(text, secret) {
					g.t.Errorf("the %s has a token", place)
				}
			}
		}
	}
	for place, want := range map[string]string{
		g.log.String(): "user=bob", records: `"user":"ann"`, metrics: `trivet_access_review_stale_answers_total{kind="token"}`,
	} {
		if !strings.Contains(place, want) {
			g.t.Errorf("%q is missing in %d bytes of log, audit log or metrics", want, len(place))
		}
	}
}

// A certificate is replaced before its key, and a process dials other servers in between.
func TestPeers_CertificatesInUseStayWhileTheirFilesAreReplaced(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	next, err := g.authority.Issue(certs.ServerLeaf("slicesvc", "trivet-system", "cluster.local"), certs.LeafLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(g.pair.CertFile, next.CertPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	g.peers.ServerName = "slicesvc"
	connection, err := rpcclient.Dial(g.process.Member().GRPCAddress, g.peers, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := healthv1.NewHealthClient(connection).Check(t.Context(), &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("a call between the replacements of certificate and key: %v", err)
	}
}
