package process

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/review"
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
	close         []func()
}

// reviews says whether the process asks a kube-apiserver about its callers.
func (c *Config) reviews() bool {
	return !c.RPC.Insecure && (c.RPC.Access.Mode == rpcserver.RBACMode || c.Kube.Kubeconfig != "")
}

// newAccess contacts no server.
func newAccess(cfg Config, logger *slog.Logger, registry prometheus.Registerer) (*access, error) {
	if cfg.RPC.Insecure {
		return &access{authorizer: authz.New(nil)}, nil
	}
	callers := authn.Config{GatewayGroup: cfg.RPC.Access.GatewayGroup, ServerGroup: cfg.RPC.Access.ServerGroup}
	if cfg.RPC.PeerCAFile != "" {
		peers, err := identity.Files{CAFile: cfg.RPC.PeerCAFile}.Client(logger)
		if err != nil {
			return nil, fmt.Errorf("--peer-ca-file: %w", err)
		}
		callers.PeerAuthorities = peers.Authorities
	}
	if !cfg.reviews() {
		return &access{authenticator: authn.New(callers), authorizer: authz.New(nil)}, nil
	}
	metrics, err := review.NewMetrics(registry)
	if err != nil {
		return nil, err
	}
	client, err := reviewClient(cfg.Kube)
	if err != nil {
		return nil, err
	}
	tokenReviews, err := authenticationclient.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make client of token reviews: %w", err)
	}
	accessReviews, err := authorizationclient.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make client of access reviews: %w", err)
	}
	tokens := authn.NewTokens(authn.TokensConfig{
		Client: tokenReviews.TokenReviews(), Audiences: cfg.RPC.Access.TokenAudiences, Metrics: metrics,
	})
	callers.Tokens = tokens
	found := &access{authenticator: authn.New(callers), authorizer: authz.New(nil), close: []func(){tokens.Close}}
	if cfg.RPC.Access.Mode == rpcserver.RBACMode {
		reviewer := authz.NewAccessReviews(accessReviews.SubjectAccessReviews(), metrics)
		found.authorizer = authz.New(reviewer)
		found.close = append(found.close, reviewer.Close)
	}
	return found, nil
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
