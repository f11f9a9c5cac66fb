package authn

import (
	"context"
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

// known is the caller of a certificate, the authorities by which the certificate was verified, and
// those by which its role was.
type known struct {
	clients, peers *x509.CertPool
	caller         Caller
}

func newCertificates() *certificates {
	return &certificates{known: cache.NewLRUExpireCache(MaxCertificates)}
}

// caller needs a verified chain. A connection outlives the authorities of its handshake, so the
// certificate is verified again when they have changed.
func (c *certificates) caller(connection *tls.ConnectionState, cfg Config) (*Caller, error) {
	clients, peers := poolOf(cfg.ClientAuthorities), poolOf(cfg.PeerAuthorities)
	leaf := connection.VerifiedChains[0][0]
	if found, ok := c.known.Get(leaf); ok {
		if former, _ := found.(*known); former.clients == clients && former.peers == peers {
			return former.current()
		}
	}
	if !isFrom(leaf, connection.PeerCertificates, clients) {
		c.known.Remove(leaf)
		return nil, NotAuthenticated("the authority of the client certificate of " + leaf.Subject.CommonName + " is not accepted any more")
	}
	if leaf.Subject.CommonName == "" {
		return nil, NotAuthenticated("the client certificate has no common name, which is the name of the user")
	}
	now := time.Now()
	fresh := &known{clients: clients, peers: peers, caller: Caller{
		Credential: Certificate, Expires: now.Add(min(leaf.NotAfter.Sub(now), maxCertificateLife)),
	}}
	groups := slices.Clone(leaf.Subject.Organization)
	gateway, server := has(groups, cfg.GatewayGroup), has(groups, cfg.ServerGroup)
	switch {
	case (gateway || server) && !isFrom(leaf, connection.PeerCertificates, peers):
		groups = slices.DeleteFunc(groups, func(group string) bool { return group == cfg.GatewayGroup || group == cfg.ServerGroup })
	case gateway:
		fresh.caller.Role = Gateway
	case server:
		fresh.caller.Role = Server
	}
	if cfg.ClientAuthorities != nil {
		fresh.caller.Recheck = func(context.Context) error {
			if cfg.ClientAuthorities() == clients { // streams ask this every few seconds
				_, err := fresh.current()
				return err
			}
			_, err := c.caller(connection, cfg)
			return err
		}
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

func poolOf(authorities func() *x509.CertPool) *x509.CertPool {
	if authorities == nil {
		return nil
	}
	return authorities()
}

// isFrom says whether a certificate is from one of the authorities; nil are all. The certificates
// that the client presented may be intermediates.
func isFrom(leaf *x509.Certificate, presented []*x509.Certificate, authorities *x509.CertPool) bool {
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
