package devcluster

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/workdir"
)

const (
	adminName  = "trivet-admin"
	adminGroup = "system:masters" // the group of cluster administrators
)

// credentials are all keys of a cluster, in memory and in files for the children. They are
// immutable.
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

func newCredentials(dir *workdir.Dir) (*credentials, error) {
	now := time.Now()
	c := &credentials{dir: dir.Path()}
	if err := c.issueEtcd(now, dir); err != nil {
		return nil, err
	}
	if err := c.issueCluster(now, dir); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *credentials) issueEtcd(now time.Time, dir *workdir.Dir) (err error) {
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
	c.files.etcdCA = dir.File("etcd-ca.crt")
	c.files.etcdServerCert, c.files.etcdServerKey = dir.File("etcd-server.crt"), dir.File("etcd-server.KeyPEM")
	c.files.etcdClientCert, c.files.etcdClientKey = dir.File("etcd-client.crt"), dir.File("etcd-client.key")
	return writeSecrets(map[string][]byte{
		c.files.etcdCA:         c.etcdCA.CertPEM(),
		c.files.etcdServerCert: server.CertPEM,
		c.files.etcdServerKey:  server.KeyPEM,
		c.files.etcdClientCert: c.etcdClient.CertPEM,
		c.files.etcdClientKey:  c.etcdClient.KeyPEM,
	})
}

func (c *credentials) issueCluster(now time.Time, dir *workdir.Dir) (err error) {
	if c.clusterCA, err = newAuthority("trivet kubernetes", now); err != nil {
		return err
	}
	server, err := c.clusterCA.server(now, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	if c.admin, err = c.clusterCA.client(now, adminName, adminGroup); err != nil {
		return err
	}
	if c.adminProbe, err = newProbe(c.clusterCA, c.admin); err != nil {
		return err
	}
	signing, verification, err := newSigningKey()
	if err != nil {
		return err
	}
	c.files.clusterCA = dir.File("ca.crt")
	c.files.apiServerCert, c.files.apiServerKey = dir.File("apiserver.crt"), dir.File("apiserver.key")
	c.files.signingKey, c.files.verificationKey = dir.File("service-account.key"), dir.File("service-account.pub")
	return writeSecrets(map[string][]byte{
		c.files.clusterCA:       c.clusterCA.CertPEM(),
		c.files.apiServerCert:   server.CertPEM,
		c.files.apiServerKey:    server.KeyPEM,
		c.files.signingKey:      signing,
		c.files.verificationKey: verification,
	})
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
