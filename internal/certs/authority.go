package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// AuthorityLifetime and LeafLifetime are the defaults of new certificates.
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	LeafLifetime      = 365 * 24 * time.Hour
	// Backdate is how long before its issue a certificate becomes valid, so that a peer whose clock
	// is slow accepts it.
	Backdate = time.Hour
)

// Authority signs certificates. It is immutable and safe for concurrent use.
type Authority struct {
	// chain has the signing certificate first, then its issuers, if it is an intermediate.
	chain []*x509.Certificate
	key   crypto.Signer // nil if only the certificate is known
}

// KeyPair is a certificate, leaf first and followed by intermediates, and its PKCS #8 key. Both are
// PEM.
type KeyPair struct {
	CertPEM, KeyPEM []byte
}

// NewAuthority returns a self-signed authority with a new ECDSA P-256 key.
func NewAuthority(name string, lifetime time.Duration, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of authority %q: %w", name, err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %q: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse authority %q: %w", name, err)
	}
	return &Authority{chain: []*x509.Certificate{certificate}, key: key}, nil
}

// ParseAuthority returns the authority of a PEM certificate and its key. Further certificates are
// its issuers. Without a key the authority is trusted and cannot sign.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	chain, err := ParseCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	if !chain[0].IsCA || chain[0].KeyUsage != 0 && chain[0].KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, fmt.Errorf("certificate %q may not sign certificates", chain[0].Subject)
	}
	a := &Authority{chain: chain}
	if len(keyPEM) == 0 {
		return a, nil
	}
	if a.key, err = parseKey(keyPEM); err != nil {
		return nil, err
	}
	if public, ok := chain[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(a.key.Public()) {
		return nil, fmt.Errorf("the key does not belong to certificate %q", chain[0].Subject)
	}
	return a, nil
}

// ParseCertificates returns the certificates of a PEM text in their order. It fails on any other
// block and on a text without a certificate.
func ParseCertificates(text []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("block %d is %q; only CERTIFICATE is allowed", len(found)+1, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(found)+1, err)
		}
		found = append(found, certificate)
	}
	if len(found) == 0 {
		return nil, errors.New("no certificate found")
	}
	return found, nil
}

// parseKey accepts the three forms in which OpenSSL, kubeadm and cert-manager write private keys.
// Blocks of other types, such as OpenSSL's curve parameters, are skipped.
func parseKey(text []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("parse private key: %w", err)
		}
		if signer, ok := key.(crypto.Signer); ok {
			return signer, nil
		}
		return nil, fmt.Errorf("a private key of type %T cannot sign", key)
	}
	return nil, errors.New("no unencrypted private key found")
}

// CertPEM returns the signing certificate, followed by its issuers.
func (a *Authority) CertPEM() []byte { return encodeCertificates(a.chain) }

// KeyPEM returns the key as PKCS #8, or nil if only the certificate is known.
func (a *Authority) KeyPEM() ([]byte, error) {
	if a.key == nil {
		return nil, nil
	}
	return encodeKey(a.key)
}

// CanSign reports whether the key of the authority is known.
func (a *Authority) CanSign() bool { return a.key != nil }

// Certificate returns the signing certificate. Callers must not change it.
func (a *Authority) Certificate() *x509.Certificate { return a.chain[0] }

// Fingerprint returns the first eight bytes of the SHA-256 of the signing certificate, in hex.
func (a *Authority) Fingerprint() string {
	sum := sha256.Sum256(a.chain[0].Raw)
	return hex.EncodeToString(sum[:8])
}

// same reports whether both have the same signing certificate. Nil is the same as nil.
func (a *Authority) same(other *Authority) bool {
	if a == nil || other == nil {
		return a == other
	}
	return a.chain[0].Equal(other.chain[0])
}

// signed reports whether the certificate comes from a.
func (a *Authority) signed(certificate *x509.Certificate) bool {
	return certificate.CheckSignatureFrom(a.chain[0]) == nil
}

// Issue signs a certificate with a new ECDSA P-256 key. The certificate ends after lifetime or with
// the authority, whichever is sooner.
func (a *Authority) Issue(leaf Leaf, lifetime time.Duration, now time.Time) (KeyPair, error) {
	if a.key == nil {
		return KeyPair{}, fmt.Errorf("sign certificate of %q: the key of authority %q is not known", leaf.User, a.chain[0].Subject)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("make key for %q: %w", leaf.User, err)
	}
	template := leaf.template()
	template.NotBefore = later(now.Add(-Backdate), a.chain[0].NotBefore)
	template.NotAfter = earlier(now.Add(lifetime), a.chain[0].NotAfter)
	der, err := x509.CreateCertificate(rand.Reader, template, a.chain[0], key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign certificate of %q: %w", leaf.User, err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for _, issuer := range a.chain {
		if !bytes.Equal(issuer.RawIssuer, issuer.RawSubject) {
			text = append(text, encodeCertificates([]*x509.Certificate{issuer})...)
		}
	}
	keyPEM, err := encodeKey(key)
	return KeyPair{CertPEM: text, KeyPEM: keyPEM}, err
}

// Bundle returns the certificates of the authorities as PEM, each once.
func Bundle(authorities ...*Authority) []byte {
	var all []*x509.Certificate
	for _, a := range authorities {
		all = append(all, a.chain...)
	}
	return encodeOnce(all)
}

// Merge returns the certificates of PEM bundles in their order, each once.
func Merge(bundles ...[]byte) ([]byte, error) {
	var all []*x509.Certificate
	for _, bundle := range bundles {
		certificates, err := ParseCertificates(bundle)
		if err != nil {
			return nil, err
		}
		all = append(all, certificates...)
	}
	return encodeOnce(all), nil
}

// WithoutExpired returns the certificates of a PEM bundle that are valid or become valid.
func WithoutExpired(bundle []byte, now time.Time) ([]byte, error) {
	certificates, err := ParseCertificates(bundle)
	if err != nil {
		return nil, err
	}
	return encodeOnce(slices.DeleteFunc(certificates, func(c *x509.Certificate) bool { return now.After(c.NotAfter) })), nil
}

func encodeOnce(certificates []*x509.Certificate) []byte {
	var once []*x509.Certificate
	for _, certificate := range certificates {
		if !slices.ContainsFunc(once, certificate.Equal) {
			once = append(once, certificate)
		}
	}
	return encodeCertificates(once)
}

func encodeCertificates(certificates []*x509.Certificate) []byte {
	var text []byte
	for _, certificate := range certificates {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})...)
	}
	return text
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
