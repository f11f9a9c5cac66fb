package process

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/review"
	"github.com/trivet-dev/trivet/internal/reviewclient"
	"github.com/trivet-dev/trivet/internal/rpcserver"
)

// reviewQPS and reviewBurst limit the reviews of this process. The cache and its bound of
// concurrent reviews limit them before, so that a review waits for its answer and not for a turn.
const (
	reviewQPS   = 1000
	reviewBurst = 2000
)

// access finds the callers of a process and decides what they may do.
type access struct {
	// authenticator is nil with --insecure, where each caller may do everything.
	authenticator *authn.Authenticator
	authorizer    *authz.Authorizer
	quota         *quota.Quota
	audit         *audit.Log // nil without an audit log
	close         []func()
}

// reviews says whether the process asks a kube-apiserver about its callers.
func (c *Config) reviews() bool {
	return !c.RPC.Insecure && (c.RPC.Access.Mode == rpcserver.RBACMode || c.Kube.Kubeconfig != "")
}

// newAccess contacts no server.
func newAccess(cfg Config, logger *slog.Logger, registry prometheus.Registerer) (*access, error) {
	found := &access{authorizer: authz.New(nil)}
	var err error
	if found.quota, err = quota.New(cfg.Limits, registry); err != nil {
		return nil, err
	}
	if found.audit, err = audit.New(cfg.Audit, logger, registry); err != nil {
		return nil, err
	}
	if cfg.RPC.Insecure {
		return found, nil
	}
	return found, found.decide(cfg, logger, registry)
}

// decide adds the authenticator and the authorizer of a server with TLS.
func (a *access) decide(cfg Config, logger *slog.Logger, registry prometheus.Registerer) error {
	known, err := identity.Files{CAFile: cfg.RPC.TLS.CAFile}.Client(logger)
	if err != nil {
		return fmt.Errorf("--client-ca-file: %w", err)
	}
	callers := authn.Config{
		GatewayGroup: cfg.RPC.Access.GatewayGroup, ServerGroup: cfg.RPC.Access.ServerGroup, ClientAuthorities: known.Authorities,
	}
	if cfg.RPC.PeerCAFile != "" {
		peers, err := identity.Files{CAFile: cfg.RPC.PeerCAFile}.Client(logger)
		if err != nil {
			return fmt.Errorf("--peer-ca-file: %w", err)
		}
		callers.PeerAuthorities = peers.Authorities
	}
	if !cfg.reviews() {
		a.authenticator = authn.New(callers)
		return registerCertificates(a.authenticator, registry)
	}
	metrics, err := review.NewMetrics(registry)
	if err != nil {
		return err
	}
	client, err := reviewClient(cfg.Kube)
	if err != nil {
		return err
	}
	clients, err := reviewclient.NewClients(client)
	if err != nil {
		return err
	}
	tokens := authn.NewTokens(authn.TokensConfig{
		Client: clients.Tokens, Audiences: cfg.RPC.Access.TokenAudiences, Metrics: metrics,
		Admit: func(address string) (func(valid bool), error) {
			slot, err := a.quota.Admit(quota.Address(address), quota.TokenReview, time.Now())
			return func(valid bool) {
				if valid {
					slot.Refund()
				} else {
					slot.Release()
				}
			}, err
		},
	})
	callers.Tokens = tokens
	a.authenticator, a.close = authn.New(callers), append(a.close, tokens.Close)
	if cfg.RPC.Access.Mode == rpcserver.RBACMode {
		reviewer := authz.NewAccessReviews(clients.Access, metrics)
		a.authorizer = authz.New(reviewer)
		a.close = append(a.close, reviewer.Close)
	}
	return registerCertificates(a.authenticator, registry)
}

func registerCertificates(of *authn.Authenticator, registry prometheus.Registerer) error {
	err := registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_access_certificates", Help: "Client certificates whose callers are kept.",
	}, func() float64 { return float64(of.Certificates()) }))
	if err != nil {
		return fmt.Errorf("register the metric of certificates: %w", err)
	}
	return nil
}

// isServer returns whether the connection of a call is of one of Trivet's own servers. With
// --insecure every caller is as trusted as they are.
func (a *access) isServer(ctx context.Context) bool {
	if a.authenticator == nil {
		return true
	}
	remote, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	secured, ok := remote.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return false
	}
	caller, err := a.authenticator.Authenticate(ctx, authn.Request{
		TLS: &secured.State, Address: remote.Addr.String(), Values: func(string) []string { return nil },
	})
	return err == nil && caller.IsPeer(authn.Gateway, authn.Server)
}

// reviewClient returns a config of its own: reviews change nothing, so they need no term, and they
// do not wait for the requests of the service.
func reviewClient(kube kubeconn.Config) (*rest.Config, error) {
	config, err := kubeconn.RESTConfig(kube)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = reviewQPS, reviewBurst
	return config, nil
}
