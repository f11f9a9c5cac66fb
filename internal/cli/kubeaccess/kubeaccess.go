// Package kubeaccess has what a person's kubeconfig gives to a command: the connection to
// kube-apiserver, and an identity for Trivet's gateway.
//
// The identity is the client certificate of the kubeconfig, also one of an exec plugin, or a token
// that kube-apiserver issues to a ServiceAccount for the audience "trivet". A token of the
// kubeconfig is for kube-apiserver alone: its bearer is able to do there whatever the person may
// do. The package never returns it.
package kubeaccess

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

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

	plugin *plugin // nil without a credential plugin
}

// ErrNone is the error of [Load] if there is no kubeconfig and none was asked for.
var ErrNone = errors.New("there is no kubeconfig")

// Load reads the kubeconfig. It calls neither kube-apiserver nor an exec plugin. Its errors are
// mistakes of the command line or of the kubeconfig.
func Load(cfg Config) (*Access, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(cfg.loadingRules(), &clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) && cfg.Kubeconfig == "" && cfg.Context == "" {
		return nil, &exit.Error{Code: exit.Usage, Err: ErrNone, Try: "give --kubeconfig or KUBECONFIG of the cluster"}
	}
	raw, rawErr := loader.RawConfig()
	if err = errors.Join(err, rawErr); err != nil {
		return nil, wrong(err, cfg)
	}
	access := &Access{Context: cmp.Or(cfg.Context, raw.CurrentContext), REST: config, plugin: pluginOf(config)}
	config.WarningHandler = rest.NoWarnings{}
	client, err := httpClient(config, access.plugin)
	if err != nil {
		return nil, wrong(err, cfg)
	}
	if access.Kube, err = kubernetes.NewForConfigAndClient(config, client); err != nil {
		return nil, wrong(err, cfg)
	}
	return access, nil
}

// wrong returns the error of a kubeconfig that cannot be used.
func wrong(err error, cfg Config) error {
	e := &exit.Error{Code: exit.Usage, Err: fmt.Errorf("kubeconfig: %w", err)}
	if known := Contexts(cfg); cfg.Context != "" && !slices.Contains(known, cfg.Context) && len(known) > 0 {
		e.Err = fmt.Errorf("the kubeconfig has no context %q", cfg.Context)
		e.Try = "give one of its contexts: " + strings.Join(known, ", ")
	}
	return e
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

// ClientCertificate returns the kubeconfig's client certificate for one TLS handshake. It waits for
// a credential plugin, which may ask the person. Without a certificate the error names what else
// identifies a person.
func (a *Access) ClientCertificate(ctx context.Context) (*tls.Certificate, error) {
	if err := a.plugin.answered(ctx); err != nil {
		return nil, err
	}
	config, err := rest.TLSConfigFor(a.REST)
	if err != nil {
		return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("kubeconfig: %w", err)}
	}
	if config != nil && config.GetClientCertificate != nil {
		certificate, err := config.GetClientCertificate(&tls.CertificateRequestInfo{})
		if err != nil {
			return nil, fmt.Errorf("client certificate of the kubeconfig: %w", err)
		}
		if certificate != nil && len(certificate.Certificate) > 0 {
			return certificate, nil
		}
	}
	return nil, &exit.Error{
		Code: exit.Usage,
		Err: fmt.Errorf("context %q has no client certificate, and its token is for kube-apiserver only; trivet does not send it to a gateway",
			a.Context),
		Try: "--as-serviceaccount NAMESPACE/NAME asks kube-apiserver for a token of that ServiceAccount; --token or TRIVET_TOKEN gives a token of audience \"trivet\"",
	}
}

// HasPlugin reports whether a credential plugin identifies the person.
func (a *Access) HasPlugin() bool { return a.plugin != nil }

// Waiting returns an error that names the credential plugin while it has not answered; nil
// otherwise.
func (a *Access) Waiting() error {
	if a.plugin == nil || a.plugin.running.Load() == 0 {
		return nil
	}
	return a.plugin.unanswered()
}
