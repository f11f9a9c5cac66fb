package resources

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
)

// issuer issues the certificates of one server and of its clients.
type issuer struct {
	*world
	authority *certs.Authority
	roots     *x509.CertPool
	server    string
}

func (w *world) newIssuer(server string) *issuer {
	w.Helper()
	authority, err := certs.NewAuthority("resources", time.Hour, time.Now())
	if err != nil {
		w.Fatal(err)
	}
	i := &issuer{world: w, authority: authority, roots: x509.NewCertPool(), server: server}
	i.roots.AppendCertsFromPEM(authority.CertPEM())
	return i
}

// args writes the server's files and returns its flags.
func (i *issuer) args() []string {
	i.Helper()
	write := func(name string, content []byte) string {
		path := filepath.Join(i.dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			i.Fatal(err)
		}
		return path
	}
	pair, err := i.issue(certs.ServerLeaf(i.server, "trivet-system", "cluster.local"))
	if err != nil {
		i.Fatal(err)
	}
	return []string{
		"--tls-cert-file=" + write("server.crt", pair.CertPEM), "--tls-key-file=" + write("server.key", pair.KeyPEM),
		"--client-ca-file=" + write("ca.crt", i.authority.CertPEM()), "--audit-log-file=",
	}
}

func (i *issuer) issue(leaf certs.Leaf) (certs.KeyPair, error) {
	return i.authority.Issue(leaf, time.Hour, time.Now())
}

// anonymous returns the TLS configuration of a client without a certificate.
func (i *issuer) anonymous() *tls.Config {
	return &tls.Config{RootCAs: i.roots, ServerName: i.server, MinVersion: tls.VersionTLS13}
}

// client returns the TLS configuration of a client with a certificate. It is safe for concurrent
// use.
func (i *issuer) client(leaf certs.Leaf) (*tls.Config, error) {
	own, err := i.issue(leaf)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(own.CertPEM, own.KeyPEM)
	config := i.anonymous()
	config.Certificates = []tls.Certificate{certificate}
	return config, err
}

// administrator returns the TLS configuration of a client of the administrative address.
func (i *issuer) administrator() *tls.Config {
	i.Helper()
	config, err := i.client(certs.ClientLeaf("administrator", "system:masters"))
	if err != nil {
		i.Fatal(err)
	}
	return config
}
