package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
)

// Files are the PEM files of a process: its certificate and key, and the authorities of its peers.
type Files struct {
	// CertFile is the certificate, leaf first, followed by intermediates.
	CertFile string
	// KeyFile is the private key of the leaf.
	KeyFile string
	// CAFile has one or more authorities of peer certificates.
	CAFile string
}

// Server reads the files and returns a server's identity. All three files are required, so a broken
// file is an error here. Later changes are reloaded.
func (f Files) Server(logger *slog.Logger) (*Server, error) {
	if f.CertFile == "" || f.KeyFile == "" || f.CAFile == "" {
		return nil, errors.New("a TLS server needs a certificate file, a key file and a client CA file")
	}
	source, err := newSource(f, logger)
	if err != nil {
		return nil, err
	}
	return &Server{source: source}, nil
}

// ServerTLS returns the configuration of [Files.Server].
func (f Files) ServerTLS(logger *slog.Logger) (*tls.Config, error) {
	server, err := f.Server(logger)
	if err != nil {
		return nil, err
	}
	return server.TLS(), nil
}

// Client reads the files and returns a client's identity. Without a CertFile the client presents no
// certificate, and without a CAFile it trusts the system's roots. Later changes are reloaded.
func (f Files) Client(logger *slog.Logger) (*Client, error) {
	if (f.CertFile == "") != (f.KeyFile == "") {
		return nil, errors.New("a certificate file and its key file are given together or not at all")
	}
	source, err := newSource(f, logger)
	if err != nil {
		return nil, err
	}
	return &Client{source: source}, nil
}

// Server is a TLS server's identity. It is safe for concurrent use.
type Server struct {
	*source
}

// TLS returns a configuration that presents the current certificate. A client may present none; one
// that it presents must be of a current authority, and for clients. Do not remove
// GetConfigForClient: without it the configuration presents no certificate.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.VerifyClientCertIfGiven,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.current().server(), nil
		},
	}
}

// Client is a TLS client's identity. It is safe for concurrent use.
type Client struct {
	*source
}

// TLS returns a configuration for one handshake, with the current certificate and authorities.
// crypto/tls reads the authorities of a client from the configuration, so a long-lived client must
// ask for a new configuration for each connection; [Client.Credentials] does.
func (c *Client) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    c.current().pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return c.current().certificate, nil
		},
	}
}

// material is the content of the files in use. It is immutable.
type material struct {
	keyPair
	authorities
}

// server disables session tickets: a client could resume with the certificate of an authority that
// has been removed.
func (m *material) server() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{*m.certificate},
		ClientAuth:             tls.VerifyClientCertIfGiven,
		ClientCAs:              m.pool,
		SessionTicketsDisabled: true,
	}
}

// keyPair is a certificate with its key, and the texts from which they were parsed.
type keyPair struct {
	certText, keyText []byte
	// certificate is never nil. Without a CertFile it is empty, and crypto/tls presents no
	// certificate.
	certificate *tls.Certificate
}

// authorities are the certificates that peers must come from, and the text of their file.
type authorities struct {
	text []byte
	// pool is nil without a CAFile.
	pool         *x509.CertPool
	certificates []*x509.Certificate
}

// readKeyPair returns inUse if the files have the same content, or if there are none.
func (f Files) readKeyPair(inUse keyPair) (keyPair, error) {
	if f.CertFile == "" {
		return inUse, nil
	}
	read, err := f.parseKeyPair(inUse)
	if err != nil {
		return keyPair{}, fmt.Errorf("read certificate %q with key %q: %w", f.CertFile, f.KeyFile, err)
	}
	return read, nil
}

func (f Files) parseKeyPair(inUse keyPair) (keyPair, error) {
	certText, err := os.ReadFile(f.CertFile)
	if err != nil {
		return keyPair{}, err
	}
	keyText, err := os.ReadFile(f.KeyFile)
	if err != nil {
		return keyPair{}, err
	}
	if inUse.certText != nil && bytes.Equal(certText, inUse.certText) && bytes.Equal(keyText, inUse.keyText) {
		return inUse, nil
	}
	if err := wholeBlocks(certText); err != nil {
		return keyPair{}, err
	}
	certificate, err := tls.X509KeyPair(certText, keyText)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{certText: certText, keyText: keyText, certificate: &certificate}, nil
}

// readAuthorities returns inUse if the file has the same content.
func (f Files) readAuthorities(inUse authorities) (authorities, error) {
	if f.CAFile == "" {
		return authorities{}, nil
	}
	text, err := os.ReadFile(f.CAFile)
	if err == nil && inUse.pool != nil && bytes.Equal(text, inUse.text) {
		return inUse, nil
	}
	var read authorities
	if err == nil {
		read, err = parseAuthorities(text)
	}
	if err != nil {
		return authorities{}, fmt.Errorf("read authorities %q: %w", f.CAFile, err)
	}
	return read, nil
}

// parseAuthorities refuses a bundle with any unreadable block. x509.CertPool.AppendCertsFromPEM
// would skip the block, and an incomplete file would lose an authority silently.
func parseAuthorities(text []byte) (authorities, error) {
	read := authorities{text: text, pool: x509.NewCertPool()}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		number := len(read.certificates) + 1
		if block.Type != "CERTIFICATE" {
			return authorities{}, fmt.Errorf("block %d is %q; only CERTIFICATE is allowed", number, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return authorities{}, fmt.Errorf("certificate %d: %w", number, err)
		}
		read.certificates = append(read.certificates, certificate)
		read.pool.AddCert(certificate)
	}
	if len(read.certificates) == 0 {
		return authorities{}, errors.New("no certificate found")
	}
	return read, wholeBlocks(text)
}

// wholeBlocks refuses a text with a PEM block that is cut off, because its writer has not finished.
func wholeBlocks(text []byte) error {
	found := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		found++
	}
	if begun := bytes.Count(text, []byte("-----BEGIN ")); begun != found {
		return fmt.Errorf("%d of %d blocks are cut off or damaged", begun-found, begun)
	}
	return nil
}

// and returns the authorities of both. They have no text, so the next read differs from them.
func (a authorities) and(other authorities) authorities {
	both := authorities{pool: x509.NewCertPool(), certificates: slices.Concat(a.certificates, other.certificates)}
	for _, certificate := range both.certificates {
		both.pool.AddCert(certificate)
	}
	return both
}

// lacks says whether an authority of other is missing from a.
func (a authorities) lacks(other authorities) bool {
	for _, certificate := range other.certificates {
		present := false
		for _, kept := range a.certificates {
			present = present || kept.Equal(certificate)
		}
		if !present {
			return true
		}
	}
	return false
}

// IsLoopback returns whether a host of a configured address is this machine, where no TLS is
// needed. It resolves no name: "localhost" is loopback, and a server checks the address that it
// resolves to.
func IsLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}
