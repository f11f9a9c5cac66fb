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
	"os"
	"path/filepath"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

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
	cluster, user, err := load(path)
	if err != nil {
		return File{}, err
	}
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
	_, user, err := load(o.From)
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
	if user.Impersonate != "" || user.Exec != nil || user.AuthProvider != nil {
		return fmt.Errorf("kubeconfig %s: the endpoint accepts a client certificate or a bootstrap token, and neither impersonation nor a plugin", o.From)
	}
	text, err := yaml.Marshal(clientcmdv1.Config{
		APIVersion: version, Kind: kind,
		Clusters: []clientcmdv1.NamedCluster{{Name: "trivet-agent", Cluster: clientcmdv1.Cluster{
			Server: "https://" + o.Endpoint, CertificateAuthority: authority.BundleFile(),
		}}},
		AuthInfos:      []clientcmdv1.NamedAuthInfo{{Name: "kubelet", AuthInfo: *user}},
		Contexts:       []clientcmdv1.NamedContext{{Name: "kubelet", Context: clientcmdv1.Context{Cluster: "trivet-agent", AuthInfo: "kubelet"}}},
		CurrentContext: "kubelet",
	})
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	_, err = w.Write(text)
	return err
}

const (
	version = "v1"
	kind    = "Config"
)

// load reads the current context of a kubeconfig. Paths become absolute. As in client-go, a field
// that is not known is no error. The types are those of client-go; its reader would link its REST
// client, too.
func load(path string) (*clientcmdv1.Cluster, *clientcmdv1.AuthInfo, error) {
	cluster, user, err := read(path)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return cluster, user, nil
}

func read(path string) (*clientcmdv1.Cluster, *clientcmdv1.AuthInfo, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	config := clientcmdv1.Config{}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, nil, err
	}
	if cmp.Or(config.APIVersion, version) != version || cmp.Or(config.Kind, kind) != kind {
		return nil, nil, fmt.Errorf("it is a %s of %s, not a %s of %s", config.Kind, config.APIVersion, kind, version)
	}
	current, err := named(config.Contexts, "context", config.CurrentContext, func(c *clientcmdv1.NamedContext) string { return c.Name })
	if err != nil {
		return nil, nil, fmt.Errorf("current-context: %w", err)
	}
	cluster, err := named(config.Clusters, "cluster", current.Context.Cluster, func(c *clientcmdv1.NamedCluster) string { return c.Name })
	if err != nil {
		return nil, nil, err
	}
	user, err := named(config.AuthInfos, "user", current.Context.AuthInfo, func(u *clientcmdv1.NamedAuthInfo) string { return u.Name })
	if err != nil {
		return nil, nil, err
	}
	if cluster.Cluster.InsecureSkipTLSVerify {
		return nil, nil, errors.New("insecure-skip-tls-verify lets any server act as kube-apiserver")
	}
	if cluster.Cluster.ProxyURL != "" {
		return nil, nil, errors.New("proxy-url is not supported: the agent chooses among the kube-apiservers and connects to each of them")
	}
	directory, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range []*string{
		&cluster.Cluster.CertificateAuthority, &user.AuthInfo.ClientCertificate, &user.AuthInfo.ClientKey, &user.AuthInfo.TokenFile,
	} {
		if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(directory, *file)
		}
	}
	return &cluster.Cluster, &user.AuthInfo, nil
}

// named returns the entry with a name. A name that two entries have is an error, as in client-go.
func named[T any](entries []T, what, name string, nameOf func(*T) string) (*T, error) {
	var found *T
	for i := range entries {
		if nameOf(&entries[i]) != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("two entries are the %s %q", what, name)
		}
		found = &entries[i]
	}
	if found == nil {
		return nil, fmt.Errorf("no %s %q", what, name)
	}
	return found, nil
}
