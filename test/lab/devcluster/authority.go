package devcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
)

// Certificates are backdated by a day, so that a test may set the clock back.
const (
	lifetime = 365 * 24 * time.Hour
	backdate = 24 * time.Hour
)

// authority signs certificates. It is immutable and safe for concurrent use. Its key is in no file.
type authority struct{ *certs.Authority }

func newAuthority(name string, now time.Time) (*authority, error) {
	signing, err := certs.NewAuthority(name, backdate+lifetime, now.Add(-backdate))
	return &authority{signing}, err
}

// readAuthority reads the certificate of an authority. Without a key it cannot sign.
func readAuthority(path string, keyPEM []byte) (*authority, error) {
	certPEM, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	parsed, err := certs.ParseAuthority(certPEM, keyPEM)
	return &authority{parsed}, err
}

// client issues a certificate of the user commonName in groups. kube-apiserver reads both from the
// subject.
func (a *authority) client(now time.Time, commonName string, groups ...string) (certs.KeyPair, error) {
	return a.issue(now, certs.ClientLeaf(commonName, groups...))
}

// server issues a certificate for a server on this machine. It is also valid for a client, because
// an etcd member uses it for its peers.
func (a *authority) server(now time.Time, names ...string) (certs.KeyPair, error) {
	return a.issue(now, certs.Leaf{
		User: "localhost", DNSNames: append([]string{"localhost"}, names...),
		IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, Serves: true,
	})
}

func (a *authority) issue(now time.Time, leaf certs.Leaf) (certs.KeyPair, error) {
	return a.Issue(leaf, backdate+lifetime, now.Add(-backdate))
}

// newSigningKey returns the key pair of ServiceAccount tokens.
func newSigningKey() (privatePEM, publicPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make token signing key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode token verification key: %w", err)
	}
	privatePEM, err = encodeKey(key)
	return privatePEM, encodePEM("PUBLIC KEY", public), err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return encodePEM("PRIVATE KEY", der), nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
