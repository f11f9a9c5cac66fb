// Package localca has the certificate authority of one node. It signs only the serving certificate
// of the endpoint, so that no other certificate of the cluster can pass for the endpoint.
package localca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/trivet-dev/trivet/internal/atomicfile"
	"github.com/trivet-dev/trivet/internal/certs"
)

const (
	// keyFile has the authorities with their keys. Only its owner may read it.
	keyFile = "endpoint-ca.json"
	// bundleFile has the certificates of the authorities, for the kubelet.
	bundleFile = "endpoint-ca.crt"
	lockFile   = "endpoint-ca.lock"
	// leafLifetime is that of serving certificates, which stay in memory.
	leafLifetime = 90 * 24 * time.Hour
	// overlap is how long a new authority is trusted before it signs. A kubelet that does not
	// follow the bundle reads it at its next start.
	overlap = 60 * 24 * time.Hour
	// rotationPeriod is the time between two checks of the authority's age.
	rotationPeriod = time.Hour
)

// CA is the authority of this node. It is safe for concurrent use.
type CA struct {
	dir    string
	logger *slog.Logger
	now    func() time.Time

	mu          sync.Mutex // guards the fields below
	authorities certs.Authorities
	serving     *tls.Certificate
}

// Open reads the authority in dir, or makes one at the first start. A file that cannot be decoded
// is replaced, because no certificate of its authority outlives the process; a file that cannot be
// read is an error.
func Open(dir string, logger *slog.Logger) (*CA, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	if err := os.MkdirAll(absolute, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	c := &CA{dir: absolute, logger: logger, now: time.Now}
	return c, c.Rotate()
}

// BundleFile returns the path of the certificates that the kubelet trusts.
func (c *CA) BundleFile() string { return filepath.Join(c.dir, bundleFile) }

// Run rotates the authority before it ends, until ctx ends.
func (c *CA) Run(ctx context.Context) error {
	tick := time.NewTicker(rotationPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := c.Rotate(); err != nil {
				c.logger.Warn("cannot rotate the local authority; the one in use stays", "error", err)
			}
		}
	}
}

// Rotate takes the next step of a rotation if one is due: a new authority is trusted before it
// signs, and a former one is trusted for a while.
func (c *CA) Rotate() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rotate()
}

// rotate is Rotate with the mutex held.
func (c *CA) rotate() error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	stored, err := c.read()
	if err != nil {
		return err
	}
	next, err := c.advance(stored)
	if err != nil {
		return err
	}
	// The keys are stored before anything trusts them.
	if !next.Equal(stored) {
		if err := c.write(next); err != nil {
			return err
		}
	}
	if err := c.publish(next); err != nil {
		return err
	}
	confirmed := next.Confirm([]*x509.Certificate{}, c.now())
	if !confirmed.Equal(next) {
		if err := c.write(confirmed); err != nil {
			return err
		}
	}
	if c.authorities.Signing == nil || c.authorities.Signing.Fingerprint() != confirmed.Signing.Fingerprint() {
		c.serving = nil
	}
	c.authorities = confirmed
	return nil
}

// advance returns the authorities that are due now. An authority that has ended is replaced at
// once, as on a node whose clock was wrong when the authority was made.
func (c *CA) advance(stored certs.Authorities) (certs.Authorities, error) {
	now := c.now()
	if signing := stored.Signing; signing != nil && (!signing.CanSign() || now.Before(signing.Certificate().NotBefore)) {
		c.logger.Warn("the local authority is not usable; a new one is made", "authority", signing.Fingerprint())
		stored = certs.Authorities{}
	}
	policy := certs.Policy{AuthorityLifetime: certs.AuthorityLifetime, LeafLifetime: leafLifetime, Overlap: overlap}
	for {
		next, changes, err := stored.Advance(policy, now)
		if err != nil || len(changes) == 0 {
			return next, err
		}
		c.logger.Info("local authority changes", "changes", changes)
		stored = next
	}
}

// lock keeps a second process, such as the command kubeconfig, from making another authority.
func (c *CA) lock() (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(c.dir, lockFile), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock local authority: %w", err)
	}
	err = c.giveLock(file)
	if err == nil {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock local authority: %w", err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// giveLock is giveToOwner for a lock that root made, now or earlier. The owner of the directory
// could have put a link to a file of root there, which root must not give away.
func (c *CA) giveLock(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !ok || !info.Mode().IsRegular() || s.Uid != 0 || s.Nlink != 1 || info.Size() > 0 {
		return nil
	}
	return giveToOwner(file)
}

func (c *CA) read() (certs.Authorities, error) {
	path := filepath.Join(c.dir, keyFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return certs.Authorities{}, nil
	}
	if err != nil {
		return certs.Authorities{}, fmt.Errorf("read local authority: %w", err)
	}
	var data map[string][]byte
	var read certs.Authorities
	if err = json.Unmarshal(text, &data); err == nil {
		read, err = certs.Decode(data)
	}
	if err != nil {
		c.logger.Warn("cannot decode the local authority; a new one is made", "file", path, "error", err)
		return certs.Authorities{}, nil
	}
	return read, nil
}

func (c *CA) write(a certs.Authorities) error {
	data, err := a.Encode(nil)
	if err != nil {
		return err
	}
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode local authority: %w", err)
	}
	return atomicfile.WriteWith(filepath.Join(c.dir, keyFile), text, 0o600, giveToOwner)
}

func (c *CA) publish(a certs.Authorities) error {
	bundle := a.Bundle()
	if old, err := os.ReadFile(c.BundleFile()); err == nil && string(old) == string(bundle) {
		return nil
	}
	return atomicfile.WriteWith(c.BundleFile(), bundle, 0o644, giveToOwner)
}

// GetCertificate returns the serving certificate, which it renews in memory. If the authority has
// ended or is not valid yet, because the clock was wrong when it was made, a new one is made first.
func (c *CA) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if s := c.serving; s != nil && now.Before(certs.RenewAt(s.Leaf)) && !now.Before(s.Leaf.NotBefore) {
		return s, nil
	}
	if authority := c.authorities.Signing.Certificate(); now.Before(authority.NotBefore) || now.After(authority.NotAfter) {
		if err := c.rotate(); err != nil {
			return nil, err
		}
	}
	pair, err := c.authorities.Signing.Issue(certs.Leaf{
		User: "trivet-agent", DNSNames: []string{"localhost"},
		IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, Serves: true,
	}, leafLifetime, now)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("load serving certificate: %w", err)
	}
	c.serving = &certificate
	return c.serving, nil
}

// giveToOwner gives a file that root makes to the owner of its directory: root runs the command
// kubeconfig, and the agent may run as another user.
func giveToOwner(file *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(filepath.Dir(file.Name()))
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		return file.Chown(int(owner.Uid), int(owner.Gid))
	}
	return nil
}
