package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// The gateway needs kube-apiserver only to review a caller. It answers peers, and readers with a
// kept decision, also without it, so that its replicas must not leave their Service all at once.
func TestGateway_StaysReadyWhileKubeAPIServerIsAway(t *testing.T) {
	w := newEmptyWorld(t)
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	kubeconfig := proxy.Kubeconfig(t)
	slice := slicesvc.DefaultConfig()
	running, needsKube := w.runGateway(t, kubeconfig), w.runProbed(t, slicesvc.Program(&slice), kubeconfig)
	testkit.Eventually(t, time.Minute, func() error { return errors.Join(running.check(t), needsKube.check(t)) })
	all := func(faultproxy.Request) bool { return true }
	proxy.Refuse(all, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	testkit.Eventually(t, time.Minute, func() error { // it has the check that the gateway has not
		if needsKube.check(t) == nil {
			return errors.New("slicesvc is ready without kube-apiserver")
		}
		return nil
	})
	late := w.runGateway(t, kubeconfig)
	testkit.Eventually(t, time.Minute, func() error { return late.check(t) })
	proxy.Hang(all)
	for name, server := range map[string]probed{"a gateway from before": running, "a gateway that began without it": late} {
		_, err := gatewayv1.NewClusterServiceClient(server.as(t, "viewer")).GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{})
		if status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != rpcerror.AccessReviewUnavailableReason {
			t.Errorf("%s, read without a kept decision: %v, want %s", name, err, rpcerror.AccessReviewUnavailableReason)
		}
		if _, err := gatewayv1.NewClusterServiceClient(server.as(t, "trivet:test", certs.ServerGroup)).GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{}); err != nil {
			t.Errorf("%s, question of a peer: %v", name, err)
		}
		if err := server.check(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// probed is a server whose readiness is asked for.
type probed struct {
	*world
	name   string
	at     term.Member
	health healthv1.HealthClient
}

func (w *world) runGateway(t *testing.T, kubeconfig string) probed {
	t.Helper()
	cfg := gateway.DefaultConfig()
	cfg.HTTPListen = "127.0.0.1:0"
	return w.runProbed(t, gateway.Program(&cfg), kubeconfig)
}

func (w *world) runProbed(t *testing.T, program process.Program, kubeconfig string) probed {
	t.Helper()
	p := probed{world: w, name: program.Name, at: w.run(t, program, kubeconfig)}
	p.health = healthv1.NewHealthClient(p.as(t, "viewer"))
	return p
}

// as returns a connection with a certificate of user.
func (p probed) as(t *testing.T, user string, groups ...string) *grpc.ClientConn {
	t.Helper()
	cfg := rpcclient.Config{TLS: p.files(t, p.own, certs.ClientLeaf(user, groups...), p.ownFile), ServerName: p.name}
	conn, err := rpcclient.Dial(p.at.GRPCAddress, cfg, slog.New(slog.DiscardHandler), grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// check returns why the server is not ready, as a kubelet and as clients of gRPC see it.
func (p probed) check(t *testing.T) error {
	t.Helper()
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(p.own.CertPEM())
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: authorities, ServerName: p.name, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true,
	}}
	reply, err := client.Get("https://" + p.at.AdminAddress + "/readyz")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(reply.Body)
		return fmt.Errorf("%s is not ready: %s", p.name, text)
	}
	answer, err := p.health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if answer.Status != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the gRPC health of %s is %v", p.name, answer.Status)
	}
	return nil
}
