// Package kubeaccess has what a person's kubeconfig gives to a command: the connection to
// kube-apiserver, and an identity for Trivet's gateway.
//
// The identity is the client certificate of the kubeconfig, also one of an exec plugin, or a token
// that kube-apiserver issues to a ServiceAccount for the audience "trivet". A token of the
// kubeconfig is for kube-apiserver alone: its bearer is able to do there whatever the person may
// do. The package never returns it.
package kubeaccess

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/internal/cli/exit"
)

// Config chooses a kubeconfig as kubectl does.
type Config struct {
	// Kubeconfig is the path of the file; empty means the files of KUBECONFIG, else ~/.kube/config.
	Kubeconfig string
	// Context is the context to use; empty means the current one.
	Context string
	// Env looks up an environment variable, as os.Getenv does.
	Env func(string) string
}

// Access is the access of a kubeconfig to a cluster. It is safe for concurrent use.
type Access struct {
	// Context is the name of the used context.
	Context string
	// REST configures clients of kube-apiserver.
	REST *rest.Config
	// Kube is a client of kube-apiserver.
	Kube kubernetes.Interface
}

// ErrNone is the error of [Load] if there is no kubeconfig and none was asked for.
var ErrNone = errors.New("there is no kubeconfig")

// Load reads the kubeconfig. It calls neither kube-apiserver nor an exec plugin.
func Load(cfg Config) (*Access, error) {
	rules := cfg.loadingRules()
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) && cfg.Kubeconfig == "" && cfg.Context == "" {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if user := config.Impersonate.UserName; user != "" {
		return nil, &exit.Error{
			Code: exit.Usage,
			Err:  fmt.Errorf("the kubeconfig impersonates %q; a gateway knows no impersonation and would take you for the certificate's user", user),
			Try:  "use a context without \"as\", or --as-serviceaccount NAMESPACE/NAME",
		}
	}
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	access := &Access{Context: raw.CurrentContext, REST: config}
	if cfg.Context != "" {
		access.Context = cfg.Context
	}
	config.WarningHandler = rest.NoWarnings{}
	if access.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return access, nil
}

// Contexts returns the sorted names of the contexts of the kubeconfig; none if it cannot be read.
func Contexts(cfg Config) []string {
	config, err := cfg.loadingRules().Load()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}

func (c Config) loadingRules() *clientcmd.ClientConfigLoadingRules {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
	home := c.Env("HOME")
	if home == "" && runtime.GOOS == "windows" {
		home = c.Env("USERPROFILE")
	}
	if paths := c.Env("KUBECONFIG"); paths != "" {
		rules.Precedence = filepath.SplitList(paths)
	} else if home != "" {
		rules.Precedence = []string{filepath.Join(home, ".kube", "config")}
	}
	return rules
}

// ClientCertificate returns a source of the kubeconfig's client certificate for TLS handshakes,
// which follows a renewed certificate. It may run an exec plugin, which may ask the person. Without
// a certificate the error names what else identifies a person.
func (a *Access) ClientCertificate() (func(*tls.CertificateRequestInfo) (*tls.Certificate, error), error) {
	config, err := rest.TLSConfigFor(a.REST)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if config != nil && config.GetClientCertificate != nil {
		certificate, err := config.GetClientCertificate(&tls.CertificateRequestInfo{})
		if err != nil {
			return nil, fmt.Errorf("client certificate of the kubeconfig: %w", err)
		}
		if certificate != nil && len(certificate.Certificate) > 0 {
			return config.GetClientCertificate, nil
		}
	}
	return nil, &exit.Error{
		Code: exit.Usage,
		Err: fmt.Errorf("context %q has no client certificate, and its token is for kube-apiserver only; trivet does not send it to a gateway",
			a.Context),
		Try: "--as-serviceaccount NAMESPACE/NAME asks kube-apiserver for a token of that ServiceAccount; --token or TRIVET_TOKEN gives a token of audience \"trivet\"",
	}
}
