package authn

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// maxCertificateLife keeps the end of a certificate that never expires within the range of a
	// time.Duration.
	maxCertificateLife = 100 * 365 * 24 * time.Hour
	// MaxCertificates bounds the certificates whose callers an Authenticator keeps.
	MaxCertificates = 4096
	// certificateAge is how long the caller of a certificate is kept. Connections end earlier.
	certificateAge = time.Hour
)

// certificates finds the callers of client certificates. The callers of the certificates in use are
// kept: a call on an established connection needs no signature to be verified.
type certificates struct {
	known *cache.LRUExpireCache // of *known, by *x509.Certificate
}

// known is the caller of a certificate and the authorities by which its role was verified.
type known struct {
	authorities *x509.CertPool
	caller      Caller
}

func newCertificates() *certificates {
	return &certificates{known: cache.NewLRUExpireCache(MaxCertificates)}
}

// caller needs a verified chain.
func (c *certificates) caller(connection *tls.ConnectionState, cfg Config) (*Caller, error) {
	var authorities *x509.CertPool
	if cfg.PeerAuthorities != nil {
		authorities = cfg.PeerAuthorities()
	}
	leaf := connection.VerifiedChains[0][0]
	if found, ok := c.known.Get(leaf); ok {
		if former, _ := found.(*known); former.authorities == authorities {
			return former.current()
		}
	}
	if leaf.Subject.CommonName == "" {
		return nil, NotAuthenticated("the client certificate has no common name, which is the name of the user")
	}
	now := time.Now()
	fresh := &known{authorities: authorities, caller: Caller{
		Credential: Certificate, Expires: now.Add(min(leaf.NotAfter.Sub(now), maxCertificateLife)),
	}}
	groups := slices.Clone(leaf.Subject.Organization)
	gateway, server := has(groups, cfg.GatewayGroup), has(groups, cfg.ServerGroup)
	switch {
	case (gateway || server) && !isPeer(leaf, connection.PeerCertificates, authorities):
		groups = slices.DeleteFunc(groups, func(group string) bool { return group == cfg.GatewayGroup || group == cfg.ServerGroup })
	case gateway:
		fresh.caller.Role = Gateway
	case server:
		fresh.caller.Role = Server
	}
	fresh.caller.Peer = User{Name: leaf.Subject.CommonName, Groups: append(groups, AuthenticatedGroup)}
	c.known.Add(leaf, fresh, certificateAge)
	return fresh.current()
}

// current returns a copy for one call, unless the certificate has ended.
func (k *known) current() (*Caller, error) {
	if time.Until(k.caller.Expires) <= 0 {
		return nil, NotAuthenticated("the client certificate of " + k.caller.Peer.Name + " has ended")
	}
	caller := k.caller
	return &caller, nil
}

func has(groups []string, group string) bool { return group != "" && slices.Contains(groups, group) }

// isPeer says whether a certificate is from one of the authorities; nil are all. The certificates
// that the client presented may be intermediates.
func isPeer(leaf *x509.Certificate, presented []*x509.Certificate, authorities *x509.CertPool) bool {
	if authorities == nil {
		return true
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range presented {
		intermediates.AddCert(certificate)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}
