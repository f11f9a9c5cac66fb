package kubeaccess

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// plugin is the credential plugin of a configuration. client-go keeps its answer until it expires,
// and waits for it without a context.
type plugin struct {
	config  *rest.Config
	running atomic.Int64 // the calls that wait for it
}

// pluginOf returns nil for a configuration without a plugin.
func pluginOf(config *rest.Config) *plugin {
	if config.ExecProvider == nil {
		return nil
	}
	return &plugin{config: config}
}

// answered returns when there is an answer of the plugin that is still valid, or when ctx ends. The
// plugin itself is not ended. It does nothing for nil.
func (p *plugin) answered(ctx context.Context) error {
	if p == nil {
		return nil
	}
	config, err := rest.TLSConfigFor(p.config)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	p.running.Add(1)
	answer := make(chan error, 1)
	go func() {
		_, err := config.GetClientCertificate(&tls.CertificateRequestInfo{}) // runs it also for a token
		p.running.Add(-1)
		answer <- err
	}()
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("credential plugin %q of the kubeconfig: %w", p.config.ExecProvider.Command, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", p.unanswered(), ctx.Err())
	}
}

func (p *plugin) unanswered() error {
	return fmt.Errorf("credential plugin %q of the kubeconfig has not answered", p.config.ExecProvider.Command)
}

// HTTPClient returns a client of kube-apiserver whose requests end with their context, also while a
// credential plugin runs.
func HTTPClient(config *rest.Config) (*http.Client, error) {
	return httpClient(config, pluginOf(config))
}

func httpClient(config *rest.Config, plugin *plugin) (*http.Client, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil || plugin == nil {
		return client, err
	}
	client.Transport = &transport{next: client.Transport, plugin: plugin}
	return client, nil
}

// transport waits for the plugin before a request.
type transport struct {
	next   http.RoundTripper
	plugin *plugin
}

// RoundTrip sends a request.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := t.plugin.answered(request.Context()); err != nil {
		if request.Body != nil {
			_ = request.Body.Close() // it is not read
		}
		return nil, err
	}
	return t.next.RoundTrip(request)
}

// CloseIdleConnections ends the unused connections.
func (t *transport) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.next) }

// WrappedRoundTripper returns the transport below this one.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }
