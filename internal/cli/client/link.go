package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
	"github.com/trivet-dev/trivet/internal/cli/portforward"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

// clusterServerName is the name in the certificate of a gateway in a cluster.
const clusterServerName = "gateway"

// forwardTimeout limits a connection through kube-apiserver: the list of Pods, the port-forward,
// the ConfigMap with the authorities, and TLS.
const forwardTimeout = 20 * time.Second

// link is how a command reaches its gateway, and what identifies the person there.
type link struct {
	// where says which gateway it is, for messages.
	where string
	// dial connects to the port "grpc" or "http".
	dial func(ctx context.Context, port string) (net.Conn, error)
	// tls returns the configuration of one handshake; nil means plaintext.
	tls func(context.Context) (*tls.Config, error)
	// token returns the token of one call; nil means none.
	token func(context.Context) (string, error)
	// waiting returns for what a connection waits; nil means that it is not known.
	waiting func() error

	mu      sync.Mutex // guards failure
	failure error      // why the last connection or token failed; nil after a success
}

func (l *link) setFailure(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
}

func (l *link) lastFailure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// open returns the link, with the credentials of the person. It calls no server and runs no
// credential plugin. Its errors are mistakes of the command line or of the kubeconfig.
func (g *Gateway) open() (*link, error) {
	if g.link != nil {
		return g.link, nil
	}
	g.choose()
	connect := g.toCluster
	if g.Server != "" {
		connect = g.toServer
	}
	opened, err := connect()
	if err != nil {
		return nil, err
	}
	g.link = opened
	return opened, nil
}

// toServer returns the link to the address of Server.
func (g *Gateway) toServer() (*link, error) {
	l := &link{where: "the gateway at " + g.Server}
	l.dial = func(ctx context.Context, port string) (net.Conn, error) {
		address := g.Server
		if port == "http" {
			address = g.httpAddress()
		}
		return g.dialServer(ctx, address)
	}
	var access *kubeaccess.Access
	if g.ServiceAccount != "" {
		var err error
		if access, err = g.access(); err != nil {
			return nil, err
		}
	}
	if err := g.setToken(l, access); err != nil {
		return nil, err
	}
	if g.isPlaintext() {
		if l.token != nil {
			return nil, exit.UsageError(errors.New("a token is not sent without TLS: give --ca-file, the authorities of the gateway's certificate"))
		}
		return l, nil
	}
	client, err := g.files()
	if err != nil {
		return nil, err
	}
	l.tls = func(context.Context) (*tls.Config, error) {
		config := client.TLS()
		if config.ServerName = g.ServerName; config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(g.Server)
		}
		return config, nil
	}
	return l, nil
}

// toCluster returns the link to a gateway Pod in the cluster of the kubeconfig.
func (g *Gateway) toCluster() (*link, error) {
	access, err := g.access()
	if err != nil {
		return nil, err
	}
	pods := portforward.New(access.REST, access.Kube, g.Namespace)
	l := &link{
		where: fmt.Sprintf("the gateway in namespace %s of context %s", g.Namespace, access.Context),
		dial:  pods.Dial, waiting: access.Waiting,
	}
	if err := g.setToken(l, access); err != nil {
		return nil, err
	}
	files, err := g.files()
	if err != nil {
		return nil, err
	}
	ofKubeconfig := l.token == nil && g.TLS.CertFile == ""
	if ofKubeconfig && !access.HasPlugin() {
		if _, err := access.ClientCertificate(context.Background()); err != nil { // reads files only
			return nil, err
		}
	}
	l.tls = func(ctx context.Context) (*tls.Config, error) {
		config := files.TLS()
		if config.ServerName = g.ServerName; config.ServerName == "" {
			config.ServerName = clusterServerName
		}
		if ofKubeconfig {
			certificate, err := access.ClientCertificate(ctx)
			if err != nil {
				return nil, err
			}
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
		}
		if g.TLS.CAFile != "" {
			return config, nil
		}
		// They are read for each connection, because they change while a watch runs.
		authorities, err := pods.Authorities(ctx)
		config.RootCAs = authorities
		return config, err
	}
	return l, nil
}

func (g *Gateway) access() (*kubeaccess.Access, error) {
	access, err := kubeaccess.Load(kubeaccess.Config{Kubeconfig: g.Kubeconfig, Context: g.Context, Env: g.env})
	if errors.Is(err, kubeaccess.ErrNone) {
		return nil, &exit.Error{
			Code: exit.Usage,
			Err:  errors.New("no gateway is known: there is neither --server, nor a local trivet-lab up, nor a kubeconfig"),
			Try:  "give --kubeconfig or KUBECONFIG of the cluster, or --server (TRIVET_SERVER); `trivet-lab up` runs everything on this machine",
		}
	}
	if err == nil && access.REST.Impersonate.UserName != "" {
		return nil, &exit.Error{
			Code: exit.Usage,
			Err: fmt.Errorf("the kubeconfig impersonates %q; a gateway knows no impersonation and would take you for the certificate's user",
				access.REST.Impersonate.UserName),
			Try: "use a context without \"as\", or --as-serviceaccount NAMESPACE/NAME",
		}
	}
	return access, err
}

// files returns the identity of the files for TLS. Calls return the errors of later changes.
func (g *Gateway) files() (*identity.Client, error) {
	files, err := g.TLS.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("--ca-file, --cert-file, --key-file: %w", err))
	}
	return files, nil
}

// setToken sets what the person gave or asked for: a token, or the tokens of a ServiceAccount.
func (g *Gateway) setToken(l *link, access *kubeaccess.Access) error {
	if err := g.checkToken(); err != nil {
		return exit.UsageError(err)
	}
	if given := g.token(); given != "" {
		l.token = func(context.Context) (string, error) { return given, nil }
		return nil
	}
	if g.ServiceAccount == "" {
		return nil
	}
	account, err := access.ServiceAccount(g.ServiceAccount)
	if err != nil {
		return err
	}
	l.token = account.Token
	return nil
}

// Dial returns a connection that connects with the first call. Calls are not retried, because only
// some commands wait. Dial fails if there are no credentials.
func (g *Gateway) Dial() (*grpc.ClientConn, error) {
	l, err := g.open()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{grpc.WithDisableRetry()}
	if l.token != nil {
		options = append(options, grpc.WithPerRPCCredentials(rpcToken{l}))
	}
	logger := slog.New(slog.DiscardHandler) // the calls return the errors of the connection
	if g.Server != "" {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx, "grpc") }))
		return rpcclient.Dial("passthrough:///"+g.Server, rpcclient.Config{TLS: g.TLS, ServerName: g.ServerName, Insecure: g.isPlaintext()}, logger, options...)
	}
	options = append(options,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := l.dial(ctx, "grpc")
			l.setFailure(err)
			return conn, err
		}),
		grpc.WithTransportCredentials(handshakes{link: l}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: forwardTimeout,
		}),
	)
	return rpcclient.Dial("passthrough:///"+clusterServerName, rpcclient.Config{Insecure: true}, logger, options...)
}

// Where says which gateway it is, for messages.
func (g *Gateway) Where() string {
	if g.link != nil {
		return g.link.where
	}
	return "the gateway"
}

// certificateHint is what helps if the gateway does not accept a client certificate.
const certificateHint = "its --client-ca-file must have the authority; --as-serviceaccount needs no certificate"

// explain returns what helps against a call without an answer, and its cause without the text that
// gRPC adds. The former is empty if the reason of the cause says it.
func (g *Gateway) explain(err error) (try string, cause error) {
	// gRPC gives the alert of a refused client certificate as the error of the first read.
	for _, alert := range []string{"unknown certificate authority", "bad certificate", "certificate required"} {
		if strings.Contains(err.Error(), "remote error: tls: "+alert) {
			return "the gateway does not accept the client certificate: " + certificateHint, err
		}
	}
	if g.link == nil {
		return "", err
	}
	cause = g.link.lastFailure()
	if cause == nil && g.link.waiting != nil {
		cause = g.link.waiting()
	}
	if cause == nil {
		// A forwarder on the way can lose the alert: the gateway closes the connection behind it.
		for _, end := range []string{"EOF", "connection reset by peer"} {
			if strings.Contains(err.Error(), "error reading server preface: ") && strings.Contains(err.Error(), end) {
				return "the gateway closed the connection after the TLS handshake; if it does not accept the client certificate, " + certificateHint, err
			}
		}
		return "", err
	}
	if coded, ok := errors.AsType[*exit.Error](cause); ok {
		try = coded.Try
	}
	return try, cause
}

// rpcToken adds the token of a link to each call.
type rpcToken struct{ link *link }

func (t rpcToken) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := t.link.token(ctx)
	if err != nil {
		t.link.setFailure(err)
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (rpcToken) RequireTransportSecurity() bool { return true }

// handshakes are gRPC credentials with a new configuration for each handshake.
type handshakes struct {
	link *link
}

func (h handshakes) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := h.link.tls(ctx)
	if err != nil {
		h.link.setFailure(err)
		return nil, nil, err
	}
	secured, info, err := credentials.NewTLS(config).ClientHandshake(ctx, config.ServerName, conn)
	if err != nil {
		err = fmt.Errorf("TLS with the gateway: %w", err)
	}
	h.link.setFailure(err)
	return secured, info, err
}

func (h handshakes) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("client credentials cannot serve")
}

func (h handshakes) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}).Info()
}

func (h handshakes) Clone() credentials.TransportCredentials { return h }

func (h handshakes) OverrideServerName(string) error {
	return errors.New("--server-name sets the server name")
}
