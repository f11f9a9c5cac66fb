package kubeconfig_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
)

const kubelet = `apiVersion: v1
kind: Config
clusters:
- name: a
  cluster: {server: "https://10.0.0.1:6443", certificate-authority: pki/ca.crt}
users:
- name: b
  user: {client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem, client-key: /var/lib/kubelet/pki/kubelet-client-current.pem}
contexts:
- name: c
  context: {cluster: a, user: b}
current-context: c
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubelet.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad_FilesNeedNotExistAndPathsAreAbsolute(t *testing.T) {
	path := write(t, kubelet)
	file, err := kubeconfig.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if file.Server.Host != "10.0.0.1:6443" || file.CAFile != filepath.Join(filepath.Dir(path), "pki/ca.crt") ||
		file.CertFile != "/var/lib/kubelet/pki/kubelet-client-current.pem" || file.KeyFile != file.CertFile {
		t.Errorf("Load() = %+v", file)
	}
}

func TestLoad_RefusesWhatCannotBeTrusted(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"plain HTTP":    {"https://", "http://", "must be an https URL"},
		"unverified":    {"certificate-authority: pki/ca.crt", "insecure-skip-tls-verify: true", "any server"},
		"proxied":       {"certificate-authority: pki/ca.crt", "proxy-url: http://proxy:3128", "proxy-url"},
		"no context":    {"current-context: c", "current-context: d", `no context "d"`},
		"no user":       {"user: b}", "user: d}", `no user "d"`},
		"no cluster":    {"cluster: a,", "cluster: d,", `no cluster "d"`},
		"two users":     {"users:\n", "users:\n- name: b\n  user: {token: x}\n", `two entries are the user "b"`},
		"another kind":  {"kind: Config", "kind: Pod", "it is a Pod"},
		"no kubeconfig": {kubelet, "no", "kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := kubeconfig.Load(write(t, strings.Replace(kubelet, c.old, c.new, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestPrint_LeadsToTheEndpointWithTheSameCredentials(t *testing.T) {
	state := t.TempDir()
	for name, c := range map[string]struct{ from, want string }{
		"certificate":     {kubelet, "client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem"},
		"bootstrap token": {strings.Replace(kubelet, "user: {client", `user: {token: "abcdef.0123456789abcdef", client`, 1), "token: abcdef.0123456789abcdef"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := kubeconfig.Print(&out, kubeconfig.Options{From: write(t, c.from), Endpoint: "127.0.0.1:7604", StateDir: state}); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("printed without %q:\n%s", c.want, &out)
			}
			config, err := clientcmd.Load(out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
			if cluster.Server != "https://127.0.0.1:7604" {
				t.Errorf("server is %q", cluster.Server)
			}
			if _, err := os.Stat(cluster.CertificateAuthority); err != nil {
				t.Errorf("the file of the authority: %v", err)
			}
		})
	}
}

func TestPrint_RefusesImpersonation(t *testing.T) {
	from := write(t, strings.Replace(kubelet, "user: {client", `user: {as: "admin", client`, 1))
	err := kubeconfig.Print(&bytes.Buffer{}, kubeconfig.Options{From: from, Endpoint: "127.0.0.1:7604", StateDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "impersonation") {
		t.Errorf("error = %v, want one about impersonation", err)
	}
}
