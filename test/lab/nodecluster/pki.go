package nodecluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/roles"
)

// serverUser is the user and the group with which the images run Trivet's servers.
const serverUser = 65532

const (
	clusterDomain   = "cluster.local"
	adminUser       = "cluster-admin"
	adminGroup      = "system:masters"
	adminLifetime   = 30 * 24 * time.Hour
	kubeletCurrent  = "kubelet-client-current.pem"
	kubernetesCA    = "ca"
	etcdCA          = "etcd-ca"
	trivetCA        = "trivet-ca"
	signingKeyFile  = "sa.key"
	verifyingKey    = "sa.pub"
	adminKubeconfig = "admin.kubeconfig"
)

// authorities are those of a cluster, in files of dir.
type authorities struct {
	dir                      string
	kubernetes, etcd, trivet *certs.Authority
}

func newAuthorities(dir string) (*authorities, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of authorities: %w", err)
	}
	for _, name := range []string{kubernetesCA, etcdCA, trivetCA} {
		authority, err := certs.NewAuthority(name, certs.AuthorityLifetime, time.Now())
		if err != nil {
			return nil, err
		}
		key, err := authority.KeyPEM()
		if err != nil {
			return nil, err
		}
		if err := writePair(filepath.Join(dir, name), certs.KeyPair{CertPEM: authority.CertPEM(), KeyPEM: key}); err != nil {
			return nil, err
		}
	}
	if err := writeSigningKey(dir); err != nil {
		return nil, err
	}
	return openAuthorities(dir)
}

func openAuthorities(dir string) (*authorities, error) {
	a := &authorities{dir: dir}
	for name, into := range map[string]**certs.Authority{kubernetesCA: &a.kubernetes, etcdCA: &a.etcd, trivetCA: &a.trivet} {
		certificate, err := os.ReadFile(filepath.Join(dir, name+".crt"))
		if err != nil {
			return nil, fmt.Errorf("read authority: %w", err)
		}
		key, err := os.ReadFile(filepath.Join(dir, name+".key"))
		if err != nil {
			return nil, fmt.Errorf("read key of authority: %w", err)
		}
		if *into, err = certs.ParseAuthority(certificate, key); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// writeSigningKey makes the key pair of ServiceAccount tokens.
func writeSigningKey(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make signing key: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode signing key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode verification key: %w", err)
	}
	return errors.Join(
		writeFile(filepath.Join(dir, signingKeyFile), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
		writeFile(filepath.Join(dir, verifyingKey), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644),
	)
}

// equipAdmin writes the administrator's certificate and kubeconfig.
func (a *authorities) equipAdmin(kubeconfig, server string) error {
	pair, err := a.kubernetes.Issue(certs.ClientLeaf(adminUser, adminGroup), adminLifetime, time.Now())
	if err != nil {
		return err
	}
	return errors.Join(writePair(filepath.Join(a.dir, "admin"), pair), a.writeKubeconfig(kubeconfig, server, pair))
}

// equipNode writes all certificates, keys and kubeconfigs of a node below its root directory.
func (a *authorities) equipNode(c Config, i int, root string) error {
	node, at := c.Nodes[i], func(path string) string { return filepath.Join(root, path) }
	problems := []error{
		writeFile(at("/etc/kubernetes/pki/ca.crt"), a.kubernetes.CertPEM(), 0o644),
		writeFile(at("/etc/trivet/trust/ca.crt"), a.trivet.CertPEM(), 0o644),
		writeFile(at("/etc/trivet/trust/client-ca.crt"), certs.Bundle(a.trivet, a.kubernetes), 0o644),
		a.equipKubelet(c, i, root),
	}
	if node.ControlPlane {
		problems = append(problems, a.equipControlPlane(i, root))
	}
	if node.ControlPlane && !c.WithoutTrivet {
		for _, server := range certs.Servers() {
			folder := at("/etc/trivet/etcd/" + server)
			etcd, err := a.etcd.Issue(certs.EtcdClientLeaf(server, "trivet-system"), certs.LeafLifetime, time.Now())
			problems = append(problems, a.equipServer(server, root), err,
				writePair(filepath.Join(folder, "tls"), etcd), writeFile(filepath.Join(folder, "ca.crt"), a.etcd.CertPEM(), 0o644), giveToServers(folder))
		}
	}
	return errors.Join(problems...)
}

// equipKubelet writes the certificate as the kubelet itself stores a renewed one. The server of a
// control-plane node is its own kube-apiserver. The workers share a balanced address, except that
// an agent in endpoint mode, which balances itself, knows one server.
func (a *authorities) equipKubelet(c Config, i int, root string) error {
	node := c.Nodes[i]
	pair, err := a.kubernetes.Issue(certs.ClientLeaf("system:node:"+node.Name, "system:nodes"), c.CertificateLifetime, time.Now())
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "/var/lib/kubelet/pki")
	const first = "kubelet-client-first.pem"
	if err := writeFile(filepath.Join(dir, first), append(pair.CertPEM, pair.KeyPEM...), 0o600); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join("/var/lib/kubelet/pki", first), filepath.Join(dir, kubeletCurrent)); err != nil {
		return fmt.Errorf("link certificate of the kubelet: %w", err)
	}
	server := fmt.Sprintf("https://%s:443", kubernetesIP)
	switch {
	case node.ControlPlane:
		server = fmt.Sprintf("https://127.0.0.1:%d", apiServerPort)
	case node.Agent == EndpointAgent:
		server = fmt.Sprintf("https://%s:%d", nodeAddress(0), apiServerPort)
	}
	current := filepath.Join("/var/lib/kubelet/pki", kubeletCurrent)
	return writeKubeconfig(filepath.Join(root, "/etc/kubernetes/kubelet.conf"),
		&clientcmdapi.Cluster{Server: server, CertificateAuthorityData: a.kubernetes.CertPEM()},
		&clientcmdapi.AuthInfo{ClientCertificate: current, ClientKey: current})
}

func (a *authorities) equipControlPlane(i int, root string) error {
	pki := func(name string) string { return filepath.Join(root, "/etc/kubernetes/pki", name) }
	address := net.IP(nodeAddress(i).AsSlice())
	local := []net.IP{net.IPv4(127, 0, 0, 1), address}
	var problems []error
	issue := func(authority *certs.Authority, file string, leaf certs.Leaf) {
		pair, err := authority.Issue(leaf, certs.LeafLifetime, time.Now())
		problems = append(problems, err, writePair(pki(file), pair))
	}
	issue(a.kubernetes, "apiserver", certs.Leaf{
		User: "kube-apiserver", IPs: append(local, net.ParseIP(kubernetesIP)), Serves: true,
		DNSNames: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain, "localhost"},
	})
	issue(a.kubernetes, "apiserver-kubelet-client", certs.ClientLeaf("kube-apiserver-kubelet-client", adminGroup))
	issue(a.etcd, "apiserver-etcd-client", certs.ClientLeaf("kube-apiserver-etcd-client"))
	issue(a.etcd, "etcd/server", certs.Leaf{User: "etcd", IPs: local, DNSNames: []string{"localhost"}, Serves: true})
	problems = append(problems, writeFile(pki("etcd/ca.crt"), a.etcd.CertPEM(), 0o644))
	for from, to := range map[string]string{
		signingKeyFile: signingKeyFile, verifyingKey: verifyingKey, kubernetesCA + ".key": kubernetesCA + ".key", etcdCA + ".key": "etcd/ca.key",
	} {
		content, err := os.ReadFile(filepath.Join(a.dir, from))
		problems = append(problems, err, writeFile(pki(to), content, 0o600))
	}
	account := func(file, server string, leaf certs.Leaf) {
		pair, err := a.kubernetes.Issue(leaf, certs.LeafLifetime, time.Now())
		problems = append(problems, err, a.writeKubeconfig(filepath.Join(root, "/etc/kubernetes", file), server, pair))
	}
	own := fmt.Sprintf("https://127.0.0.1:%d", apiServerPort)
	account("controller-manager.conf", own, certs.ClientLeaf("system:kube-controller-manager"))
	account("scheduler.conf", own, certs.ClientLeaf("system:kube-scheduler"))
	// The ClusterIP leads to a ready kube-apiserver, as the balancer in front of a control plane
	// does.
	account("admin.conf", fmt.Sprintf("https://%s:443", kubernetesIP), certs.ClientLeaf(adminUser, adminGroup))
	return errors.Join(problems...)
}

// equipServer writes what a server of Trivet has: its certificate and a kubeconfig of the account
// whose rights deploy/ grants.
func (a *authorities) equipServer(server, root string) error {
	dir := filepath.Join(root, "/etc/trivet", server)
	pair, err := a.trivet.Issue(certs.ServerLeaf(server, roles.Namespace, clusterDomain), certs.LeafLifetime, time.Now())
	if err != nil {
		return err
	}
	user, groups := roles.User(server)
	account, err := a.kubernetes.Issue(certs.ClientLeaf(user, groups...), certs.LeafLifetime, time.Now())
	if err != nil {
		return err
	}
	return errors.Join(
		writePair(filepath.Join(dir, "tls"), pair),
		a.writeKubeconfig(filepath.Join(dir, "kubeconfig"), fmt.Sprintf("https://127.0.0.1:%d", apiServerPort), account),
		giveToServers(dir),
	)
}

func (a *authorities) writeKubeconfig(file, server string, pair certs.KeyPair) error {
	return writeKubeconfig(file,
		&clientcmdapi.Cluster{Server: server, CertificateAuthorityData: a.kubernetes.CertPEM()},
		&clientcmdapi.AuthInfo{ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM})
}

func writeKubeconfig(file string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	const name = "cluster"
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: user},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
	if err := clientcmd.WriteToFile(config, file); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// writePair writes path.crt and path.key.
func writePair(path string, pair certs.KeyPair) error {
	return errors.Join(writeFile(path+".crt", pair.CertPEM, 0o644), writeFile(path+".key", pair.KeyPEM, 0o600))
}

// writeFile makes the file's directory, too.
func writeFile(file string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.WriteFile(file, content, mode); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// giveToServers lets the servers' user read all files of a directory.
func giveToServers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list files of a server: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		file := filepath.Join(dir, entry.Name())
		problems = append(problems, os.Chown(file, 0, serverUser), os.Chmod(file, 0o640))
	}
	return errors.Join(problems...)
}
