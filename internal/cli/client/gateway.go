package client

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
	"github.com/trivet-dev/trivet/internal/cli/localgateway"
	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	exampleServer    = "127.0.0.1:7600"
	defaultNamespace = "trivet-system"
	// defaultHTTPPort is the port of the gateway's page.
	defaultHTTPPort = "7680"
	// tokenVariable has a token for the gateway.
	tokenVariable = "TRIVET_TOKEN"
)

// Gateway says which gateway to call, and with which identity. Without a Server it is the gateway
// of a local `trivet-lab up`; without that, the gateway in the cluster of the kubeconfig.
type Gateway struct {
	// Server is the gateway's gRPC address, host:port.
	Server string
	// HTTPServer is the address of the gateway's page, host:port; empty means port 7680 of the host
	// of Server.
	HTTPServer string
	// ServerName is the name in the gateway's certificate; empty means the host of Server, or
	// "gateway" in a cluster.
	ServerName string
	// TLS has the files for TLS. Without any, the connection to loopback is plaintext.
	TLS identity.Files
	// Token is a bearer token for the gateway.
	Token string
	// Kubeconfig and Context choose a cluster.
	Kubeconfig, Context string
	// ServiceAccount is NAMESPACE/NAME, whose token identifies the caller; empty for none.
	ServiceAccount string
	// Namespace is where Trivet runs in the cluster.
	Namespace string

	impersonation []string // names of the flags of kubectl that were given
	env           func(string) string
	link          *link // nil before the first use
}

// RegisterFlags adds the flags. Their defaults come from the environment, such as TRIVET_SERVER.
func (g *Gateway) RegisterFlags(fs *pflag.FlagSet, env func(string) string) {
	g.env = env
	g.HTTPServer = env(localgateway.HTTPServerVariable)
	fs.StringVar(&g.Server, "server", env(localgateway.ServerVariable),
		"The gateway's gRPC address, host:port (environment: TRIVET_SERVER). Plaintext on loopback, unless TLS flags are given. "+
			"Default: a local trivet-lab up, else a port-forward to the cluster of the kubeconfig.")
	fs.StringVar(&g.ServerName, "server-name", "",
		"The name in the gateway's certificate; default: the host of --server, or gateway in a cluster.")
	fs.StringVar(&g.TLS.CAFile, "ca-file", env(localgateway.CAFileVariable),
		"PEM file with the authorities of the gateway's certificate; default: those of the system, or of ConfigMap trivet-ca in a cluster (environment: TRIVET_CA_FILE).")
	fs.StringVar(&g.TLS.CertFile, "cert-file", env(localgateway.CertFileVariable),
		"PEM file with the client certificate; default in a cluster: that of the kubeconfig (environment: TRIVET_CERT_FILE).")
	fs.StringVar(&g.TLS.KeyFile, "key-file", env(localgateway.KeyFileVariable),
		"PEM file with the private key of --cert-file (environment: TRIVET_KEY_FILE).")
	fs.StringVar(&g.Token, "token", "",
		"Token for the gateway, of audience trivet (environment: TRIVET_TOKEN, which other users of this machine cannot read).")
	fs.StringVar(&g.ServiceAccount, "as-serviceaccount", "",
		"Act as ServiceAccount NAMESPACE/NAME: ask kube-apiserver for its token of audience trivet.")
	fs.StringVar(&g.Kubeconfig, "kubeconfig", "", "The kubeconfig; default: the files of KUBECONFIG, else ~/.kube/config.")
	fs.StringVar(&g.Context, "context", "", "The context of the kubeconfig; default: the current one.")
	fs.StringVar(&g.Namespace, "trivet-namespace", cmp.Or(env("TRIVET_NAMESPACE"), defaultNamespace),
		"The namespace of the gateway in the cluster (environment: TRIVET_NAMESPACE).")
	g.registerImpersonation(fs)
}

// registerImpersonation accepts kubectl's flags for impersonation, in order to refuse them with the
// reason.
func (g *Gateway) registerImpersonation(fs *pflag.FlagSet) {
	for _, name := range []string{"as", "as-group", "as-uid"} {
		fs.Func(name, "Refused: a gateway knows no impersonation.", func(string) error {
			g.impersonation = append(g.impersonation, name)
			return nil
		})
		fs.Lookup(name).Hidden = true
	}
}

// Validate returns all problems, each with its flag.
func (g *Gateway) Validate() []error {
	var problems []error
	for _, name := range g.impersonation {
		problems = append(problems, fmt.Errorf(
			"--%s: a gateway knows no impersonation; use --as-serviceaccount NAMESPACE/NAME, or a kubeconfig of that user", name))
	}
	if g.Server != "" {
		problems = append(problems, addressProblem("--server", g.Server)...)
	}
	if g.ServiceAccount != "" {
		if _, _, err := kubeaccess.ParseServiceAccount(g.ServiceAccount); err != nil {
			problems = append(problems, err)
		}
	}
	if (g.TLS.CertFile == "") != (g.TLS.KeyFile == "") {
		problems = append(problems, errors.New("--cert-file and --key-file belong together; give both or neither"))
	}
	if g.Token != "" && g.ServiceAccount != "" {
		problems = append(problems, errors.New("--token and --as-serviceaccount exclude each other: each is an identity"))
	}
	return problems
}

func addressProblem(flag, address string) []error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return []error{fmt.Errorf("%s=%q: must be host:port, for example %q", flag, address, exampleServer)}
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return []error{fmt.Errorf("%s=%q: port %q is not a number from 1 to 65535", flag, address, port)}
	}
	return nil
}

// choose fills in the address of a local gateway, unless a flag or the environment chooses another
// one.
func (g *Gateway) choose() {
	if g.Server != "" || g.Kubeconfig != "" || g.Context != "" {
		return
	}
	published, found := localgateway.Find(g.env)
	if !found {
		return
	}
	g.Server, g.HTTPServer = published(localgateway.ServerVariable), cmp.Or(g.HTTPServer, published(localgateway.HTTPServerVariable))
	g.TLS.CAFile = cmp.Or(g.TLS.CAFile, published(localgateway.CAFileVariable))
	if g.TLS.CertFile == "" && g.token() == "" && g.ServiceAccount == "" {
		g.TLS.CertFile, g.TLS.KeyFile = published(localgateway.CertFileVariable), published(localgateway.KeyFileVariable)
	}
}

// token returns the token that the person gave, without the line end of a file. One of the
// environment gives way to a flag with an identity.
func (g *Gateway) token() string {
	if g.Token != "" || g.ServiceAccount != "" {
		return strings.TrimSpace(g.Token)
	}
	return strings.TrimSpace(g.env(tokenVariable))
}

// checkToken returns why a header cannot carry the token.
func (g *Gateway) checkToken() error {
	source := tokenVariable
	if g.Token != "" {
		source = "--token"
	}
	if strings.ContainsFunc(g.token(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%s: a token has no spaces, line breaks and special characters inside", source)
	}
	return nil
}

func (g *Gateway) isPlaintext() bool {
	host, _, err := net.SplitHostPort(g.Server)
	return err == nil && g.TLS == identity.Files{} && g.ServerName == "" && identity.IsLoopback(host)
}

// httpAddress returns the address of the page of a gateway with a Server.
func (g *Gateway) httpAddress() string {
	host, _, _ := net.SplitHostPort(g.Server)
	return cmp.Or(g.HTTPServer, net.JoinHostPort(host, defaultHTTPPort))
}
