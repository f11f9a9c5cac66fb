package rpcserver

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/certs"
)

// Values of AccessConfig.Mode.
const (
	// RBACMode asks the kube-apiserver, by SubjectAccessReview.
	RBACMode = "RBAC"
	// AlwaysAllowMode allows authenticated callers everything, over loopback only.
	AlwaysAllowMode = "AlwaysAllow"
)

// AccessConfig says how callers prove their identity and what decides about their rights. It has no
// effect with Config.Insecure.
type AccessConfig struct {
	// TokenAudiences are the audiences of which a bearer token needs one.
	TokenAudiences []string
	// GatewayGroup and ServerGroup are the groups in the certificates of gateways and of servers.
	GatewayGroup, ServerGroup string
	// Mode is RBACMode or AlwaysAllowMode.
	Mode string
}

// DefaultAccessConfig returns the documented defaults.
func DefaultAccessConfig() AccessConfig {
	return AccessConfig{
		TokenAudiences: []string{authn.DefaultTokenAudience},
		GatewayGroup:   certs.GatewayGroup, ServerGroup: certs.ServerGroup,
		Mode: RBACMode,
	}
}

func (c *AccessConfig) registerFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.TokenAudiences, "token-audiences", c.TokenAudiences,
		"Audiences of which a bearer token needs one. A token for the kube-apiserver is not accepted unless its audience is named here.")
	fs.StringVar(&c.GatewayGroup, "gateway-group", c.GatewayGroup,
		"Group in the certificates of gateways, which may call on behalf of others; empty: no gateway is known.")
	fs.StringVar(&c.ServerGroup, "server-group", c.ServerGroup,
		"Group in the certificates of servers, which may forward heartbeats to each other; empty: no server is known.")
	fs.StringVar(&c.Mode, "authorization-mode", c.Mode,
		"RBAC asks the kube-apiserver for each right; AlwaysAllow lets authenticated callers do everything and is accepted only while each address of the process, also of HTTP, is a loopback address.")
}

func (c *AccessConfig) validate(loopback bool) []error {
	var problems []error
	if len(c.TokenAudiences) == 0 || slices.Contains(c.TokenAudiences, "") {
		problems = append(problems, errors.New("--token-audiences: give at least one audience, and none that is empty"))
	}
	switch {
	case c.GatewayGroup != "" && c.GatewayGroup == c.ServerGroup:
		problems = append(problems, fmt.Errorf("--gateway-group and --server-group are both %q; they have different rights", c.GatewayGroup))
	case c.GatewayGroup == authn.NodesGroup || c.ServerGroup == authn.NodesGroup:
		problems = append(problems, fmt.Errorf("--gateway-group, --server-group: %s is the group of all nodes", authn.NodesGroup))
	}
	switch {
	case c.Mode != RBACMode && c.Mode != AlwaysAllowMode:
		problems = append(problems, fmt.Errorf("--authorization-mode=%q is neither %s nor %s", c.Mode, RBACMode, AlwaysAllowMode))
	case c.Mode == AlwaysAllowMode && !loopback:
		problems = append(problems, fmt.Errorf("--authorization-mode=%s is accepted only while --listen is a loopback address", AlwaysAllowMode))
	}
	return problems
}
