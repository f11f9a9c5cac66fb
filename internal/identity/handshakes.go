package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
)

// Reasons of failed handshakes, which are values of a metric's label.
const (
	unknownAuthority = "unknown_authority"
	expired          = "expired"
	wrongCertificate = "wrong_certificate" // another name or usage, or a damaged certificate
	refusedByPeer    = "refused_by_peer"   // the peer does not accept the certificate of this process
)

// handshakes counts handshakes that fail because of a certificate. A connection that ends without
// an answer, such as a port scan's, is none of them. It is safe for concurrent use.
type handshakes struct {
	failed *prometheus.CounterVec

	mu     sync.Mutex
	warned map[string]time.Time // by reason
}

func newHandshakes() *handshakes {
	h := &handshakes{warned: map[string]time.Time{}, failed: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "trivet_tls_handshakes_failed_total",
		Help: "TLS handshakes that failed because of a certificate, by reason.",
	}, []string{"reason"})}
	for _, reason := range []string{unknownAuthority, expired, wrongCertificate, refusedByPeer} {
		h.failed.WithLabelValues(reason)
	}
	return h
}

// failedBecause returns why a handshake failed; empty if no certificate is the cause.
func failedBecause(err error) string {
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var verification *tls.CertificateVerificationError
	var network *net.OpError
	switch {
	case errors.As(err, &authority):
		return unknownAuthority
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return expired
	case errors.As(err, &verification):
		return wrongCertificate
	case errors.As(err, &network) && network.Op == "remote error":
		return refusedByPeer
	default:
		return ""
	}
}

// observe counts a failed handshake, and warns once in warnPeriod for each reason: a peer that
// tries again must not fill the log.
func (s *source) observe(err error, peer net.Addr) {
	reason := failedBecause(err)
	if reason == "" {
		return
	}
	s.handshakes.failed.WithLabelValues(reason).Inc()
	if s.handshakes.mayWarn(reason, time.Now()) {
		s.logger.Warn("TLS handshake failed because of a certificate", "reason", reason, "error", err, "peer", peer.String(), s.names())
	}
}

func (h *handshakes) mayWarn(reason string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last, ok := h.warned[reason]; ok && now.Sub(last) < warnPeriod {
		return false
	}
	h.warned[reason] = now
	return true
}

// Observe returns credentials of a gRPC server that count failed handshakes of inner.
func (s *Server) Observe(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &observed{TransportCredentials: inner, server: s}
}

type observed struct {
	credentials.TransportCredentials
	server *Server
}

// ServerHandshake counts a failure that a certificate caused.
func (o *observed) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := o.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		o.server.observe(err, raw.RemoteAddr())
	}
	return conn, info, err
}

// Clone returns a copy that counts for the same server.
func (o *observed) Clone() credentials.TransportCredentials {
	return &observed{TransportCredentials: o.TransportCredentials.Clone(), server: o.server}
}
