// Package kubeconfig reads the kubeconfig of a kubelet, and writes the one that leads the kubelet
// to the endpoint of trivet-agent.
package kubeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/localca"
)

// File is the current context of a kubeconfig. Paths are absolute. Of each pair of a path and data,
// data counts.
type File struct {
	// Server is the URL of kube-apiserver.
	Server *url.URL
	// TLSServerName is the name in the server's certificate; empty means the host of Server.
	TLSServerName string
	CAFile        string
	CAData        []byte
	// CertFile and KeyFile may name one file that has both, and need not exist yet.
	CertFile, KeyFile string
	CertData, KeyData []byte
}

// Load reads a kubeconfig. It does not read the files that the kubeconfig names, because a kubelet
// has no certificate before its first registration.
func Load(path string) (File, error) {
	config, err := load(path)
	if err != nil {
		return File{}, err
	}
	cluster, user := config.current()
	server, err := url.Parse(cluster.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" {
		return File{}, fmt.Errorf("kubeconfig %s: server %q must be an https URL", path, cluster.Server)
	}
	return File{
		Server: server, TLSServerName: cluster.TLSServerName,
		CAFile: cluster.CertificateAuthority, CAData: cluster.CertificateAuthorityData,
		CertFile: user.ClientCertificate, KeyFile: user.ClientKey,
		CertData: user.ClientCertificateData, KeyData: user.ClientKeyData,
	}, nil
}

// Options are the flags of the command kubeconfig.
type Options struct {
	// From is the kubeconfig of the kubelet, which leads to kube-apiserver.
	From string
	// Endpoint is the address of the endpoint.
	Endpoint string
	// StateDir has the local authority, which is made if there is none.
	StateDir string
	Logger   *slog.Logger
}

// Print writes the kubeconfig that leads the kubelet to the endpoint. The credentials are those of
// Options.From, a bootstrap token too. It names the file of the local authority and does not embed
// it, so that the kubelet follows its rotation.
func Print(w io.Writer, o Options) error {
	config, err := load(o.From)
	if err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(o.Endpoint); err != nil {
		return fmt.Errorf("address of the endpoint: %w", err)
	}
	authority, err := localca.Open(o.StateDir, cmp.Or(o.Logger, slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	_, user := config.current()
	if user.Impersonate != "" || user.Exec != nil || user.AuthProvider != nil {
		return fmt.Errorf("kubeconfig %s: the endpoint accepts a client certificate or a bootstrap token, and neither impersonation nor a plugin", o.From)
	}
	printed := clientcmdapi.NewConfig()
	printed.Clusters["trivet-agent"] = &clientcmdapi.Cluster{Server: "https://" + o.Endpoint, CertificateAuthority: authority.BundleFile()}
	printed.AuthInfos["kubelet"] = user
	printed.Contexts["kubelet"] = &clientcmdapi.Context{Cluster: "trivet-agent", AuthInfo: "kubelet"}
	printed.CurrentContext = "kubelet"
	text, err := clientcmd.Write(*printed)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	_, err = w.Write(text)
	return err
}

// loaded is a kubeconfig with a complete current context.
type loaded struct{ *clientcmdapi.Config }

func load(path string) (loaded, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return loaded{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return loaded{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	current := config.Contexts[config.CurrentContext]
	switch {
	case current == nil:
		err = fmt.Errorf("no context %q, which is the current one", config.CurrentContext)
	case config.Clusters[current.Cluster] == nil:
		err = fmt.Errorf("no cluster %q", current.Cluster)
	case config.AuthInfos[current.AuthInfo] == nil:
		err = fmt.Errorf("no user %q", current.AuthInfo)
	case config.Clusters[current.Cluster].InsecureSkipTLSVerify:
		err = errors.New("insecure-skip-tls-verify lets any server act as kube-apiserver")
	}
	if err != nil {
		return loaded{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return loaded{config}, nil
}

func (l loaded) current() (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
	current := l.Contexts[l.CurrentContext]
	return l.Clusters[current.Cluster], l.AuthInfos[current.AuthInfo]
}
