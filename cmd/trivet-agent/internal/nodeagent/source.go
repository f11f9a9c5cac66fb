package nodeagent

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/replicas"
	"github.com/trivet-dev/trivet/internal/identity"
)

// source returns where the replicas of leasesvc are found.
func (n *node) source() (replicas.Source, error) {
	if len(n.cfg.Leasesvc.Addresses) > 0 {
		return replicas.Names(n.cfg.Leasesvc.Addresses), nil
	}
	namespace, name, _ := strings.Cut(n.cfg.Leasesvc.Service, "/")
	return replicas.EndpointSlices{
		Namespace: namespace, Service: name,
		Client: &http.Client{Transport: &n.apiservers}, Server: &url.URL{Scheme: "https", Host: "kube-apiserver"},
	}, nil
}

// files returns the files of the identity at leasesvc. The kubeconfig is read each time until it can
// be: it may appear after the agent has started.
func (n *node) files() (identity.Files, error) {
	var kube *kubeconfig.File
	if n.cfg.Kubeconfig != "" {
		read, err := kubeconfig.Load(n.cfg.Kubeconfig)
		if err != nil {
			return identity.Files{}, err
		}
		kube = &read
	}
	return n.cfg.credentialFiles(kube)
}

var errNoAPIServer = errors.New("the kube-apiservers are not known yet, because the node is not")

// lateTransport is a RoundTripper that is known only after the name of the node is.
type lateTransport struct {
	transport atomic.Pointer[http.RoundTripper]
}

func (l *lateTransport) set(transport http.RoundTripper) { l.transport.Store(&transport) }

// RoundTrip implements http.RoundTripper.
func (l *lateTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	transport := l.transport.Load()
	if transport == nil {
		return nil, errNoAPIServer
	}
	return (*transport).RoundTrip(r)
}
