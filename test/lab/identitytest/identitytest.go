// Package identitytest makes certificates for tests: authorities that issue them, and files to put
// them in and replace. Everything is written below t.TempDir and fails the test when it cannot be.
package identitytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/identity"
)

// Authority issues certificates for servers and clients alike.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// NewAuthority returns a new authority, unrelated to any other.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	key := newKey(t)
	template := template(t, name)
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	der := sign(t, template, template, key, key)
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", der)}
}

// Certificate returns a certificate of a user in groups, for a connection.
func (a *Authority) Certificate(t testing.TB, user string, groups ...string) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(a.Issue(t, user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Pool returns a pool with the authority only.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Issue returns a certificate of a user in groups, valid for 127.0.0.1 and for name, and its key.
func (a *Authority) Issue(t testing.TB, name string, groups ...string) (certificate, key []byte) {
	t.Helper()
	leaf := newKey(t)
	template := template(t, name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames = []string{name}
	template.Subject.Organization = groups
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	der := sign(t, template, a.certificate, leaf, a.key)
	raw, err := x509.MarshalPKCS8PrivateKey(leaf)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", raw)
}

// Files writes a certificate of a for name, and the authorities that peers are verified against, to
// a new directory.
func (a *Authority) Files(t testing.TB, name string, peers ...*Authority) identity.Files {
	t.Helper()
	dir := t.TempDir()
	files := identity.Files{
		CertFile: filepath.Join(dir, "tls.crt"),
		KeyFile:  filepath.Join(dir, "tls.key"),
		CAFile:   filepath.Join(dir, "ca.crt"),
	}
	certificate, key := a.Issue(t, name)
	Replace(t, files.CertFile, certificate)
	Replace(t, files.KeyFile, key)
	Replace(t, files.CAFile, Bundle(peers...))
	return files
}

// Bundle returns the certificates of authorities in one text.
func Bundle(authorities ...*Authority) []byte {
	var bundle []byte
	for _, a := range authorities {
		bundle = append(bundle, a.pem...)
	}
	return bundle
}

// Replace puts content in the place of the file at path in one step, as a rotation does.
func Replace(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// template is valid from long ago to far ahead, so that tests inside a synctest bubble, where it is
// the year 2000, agree.
func template(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func sign(t testing.TB, template, parent *x509.Certificate, key, issuer *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, issuer)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
