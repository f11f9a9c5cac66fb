package devcluster

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
)

const (
	adminName  = "trivet-admin"
	adminGroup = "system:masters" // the group of cluster administrators
)

// credentials are all keys of a cluster, in memory and in files for the children and for attached
// processes. They are immutable.
type credentials struct {
	dir                   string
	etcdCA, clusterCA     *authority
	etcdClient, admin     certs.KeyPair
	etcdProbe, adminProbe *probe
	files                 credentialFiles
}

// credentialFiles are paths.
type credentialFiles struct {
	etcdCA, etcdServerCert, etcdServerKey, etcdClientCert, etcdClientKey string
	clusterCA, apiServerCert, apiServerKey                               string
	signingKey, verificationKey                                          string
}

func newCredentials(dir string) (*credentials, error) {
	now := time.Now()
	c := &credentials{dir: dir, files: credentialFilesIn(dir)}
	if err := c.issueEtcd(now); err != nil {
		return nil, err
	}
	if err := c.issueCluster(now); err != nil {
		return nil, err
	}
	return c, nil
}

func credentialFilesIn(dir string) credentialFiles {
	in := func(name string) string { return filepath.Join(dir, name) }
	return credentialFiles{
		etcdCA:          in("etcd-ca.crt"),
		etcdServerCert:  in("etcd-server.crt"),
		etcdServerKey:   in("etcd-server.key"),
		etcdClientCert:  in("etcd-client.crt"),
		etcdClientKey:   in("etcd-client.key"),
		clusterCA:       in("ca.crt"),
		apiServerCert:   in("apiserver.crt"),
		apiServerKey:    in("apiserver.key"),
		signingKey:      in("service-account.key"),
		verificationKey: in("service-account.pub"),
	}
}

func (c *credentials) issueEtcd(now time.Time) (err error) {
	if c.etcdCA, err = newAuthority("trivet etcd", now); err != nil {
		return err
	}
	server, err := c.etcdCA.server(now)
	if err != nil {
		return err
	}
	if c.etcdClient, err = c.etcdCA.client(now, "trivet"); err != nil {
		return err
	}
	if c.etcdProbe, err = newProbe(c.etcdCA, c.etcdClient); err != nil {
		return err
	}
	return writeSecrets(map[string][]byte{
		c.files.etcdCA:         c.etcdCA.CertPEM(),
		c.files.etcdServerCert: server.CertPEM,
		c.files.etcdServerKey:  server.KeyPEM,
		c.files.etcdClientCert: c.etcdClient.CertPEM,
		c.files.etcdClientKey:  c.etcdClient.KeyPEM,
	})
}

func (c *credentials) issueCluster(now time.Time) (err error) {
	if c.clusterCA, err = newAuthority("trivet kubernetes", now); err != nil {
		return err
	}
	server, err := c.clusterCA.server(now, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	if err := c.issueAdmin(now); err != nil {
		return err
	}
	signing, verification, err := newSigningKey()
	if err != nil {
		return err
	}
	return writeSecrets(map[string][]byte{
		c.files.clusterCA:       c.clusterCA.CertPEM(),
		c.files.apiServerCert:   server.CertPEM,
		c.files.apiServerKey:    server.KeyPEM,
		c.files.signingKey:      signing,
		c.files.verificationKey: verification,
	})
}

func (c *credentials) issueAdmin(now time.Time) (err error) {
	if c.admin, err = c.clusterCA.client(now, adminName, adminGroup); err != nil {
		return err
	}
	c.adminProbe, err = newProbe(c.clusterCA, c.admin)
	return err
}

func writeSecrets(files map[string][]byte) error {
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("write credentials: %w", err)
		}
	}
	return nil
}

// clientTLS trusts servers signed by ca and presents pair.
func clientTLS(ca *authority, pair certs.KeyPair) (*tls.Config, error) {
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("load client certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{certificate}}, nil
}
