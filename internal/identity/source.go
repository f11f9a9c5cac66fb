package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// recheck is the least time between two reads of the files, which bounds the reads of many
	// reconnects.
	recheck = time.Second
	// warnPeriod is the time between two warnings with the same cause.
	warnPeriod = time.Minute
)

// source holds the material in use and replaces it when the content of the files has changed. It is
// safe for concurrent use.
//
// A read compares the content with what is in use. What the file system says of a file (times,
// mode, owner, inode) decides nothing, so no change of a file can be missed and no failed read is
// remembered as a change that was seen.
type source struct {
	files  Files
	logger *slog.Logger
	inUse  atomic.Pointer[material] // never nil
	broken atomic.Pointer[error]    // why the files cannot be used; nil if they are in use

	handshakes *handshakes

	reading sync.Mutex // held by the one reader; guards the fields below
	checked time.Time
	// shrunk is a bundle that lacks an authority in use. It counts when two reads in a row find it,
	// because a writer may have finished only the first certificates.
	shrunk   []byte
	warned   string // the cause of the last warning; empty when the files are in use
	warnedAt time.Time
}

func newSource(files Files, logger *slog.Logger) (*source, error) {
	pair, err := files.readKeyPair(keyPair{certificate: &tls.Certificate{}})
	if err != nil {
		return nil, err
	}
	peers, err := files.readAuthorities(authorities{})
	if err != nil {
		return nil, err
	}
	s := &source{files: files, logger: logger, checked: time.Now(), handshakes: newHandshakes()}
	s.inUse.Store(&material{keyPair: pair, authorities: peers})
	return s, nil
}

// current returns the newest material that could be read. A slow file system delays only the caller
// that reads; the others get what is in use.
func (s *source) current() *material {
	if s.reading.TryLock() {
		defer s.reading.Unlock()
		if now := time.Now(); now.Sub(s.checked) >= recheck {
			s.checked = now
			s.reload(now)
		}
	}
	return s.inUse.Load()
}

// reload reads the key pair and the authorities independently: a broken file of one does not keep
// the other from use.
func (s *source) reload(now time.Time) {
	before := s.inUse.Load()
	next := *before
	pair, pairErr := s.files.readKeyPair(before.keyPair)
	if pairErr == nil {
		next.keyPair = pair
	}
	peers, peersErr := s.files.readAuthorities(before.authorities)
	if peersErr == nil {
		next.authorities = s.accept(peers, before.authorities)
	}
	changed := next.certificate != before.certificate || next.pool != before.pool
	if changed {
		s.inUse.Store(&next)
		s.logger.Info("certificate files reloaded", s.names(), "expire", next.expiry())
	}
	s.report(now, errors.Join(pairErr, peersErr))
}

// accept returns the authorities to use after a read. One that is missing is kept until the next
// read. One that is new counts at once: a process without handshakes does not read the files while
// both authorities are in them.
func (s *source) accept(read, inUse authorities) authorities {
	if read.pool == inUse.pool || !read.lacks(inUse) || bytes.Equal(read.text, s.shrunk) {
		s.shrunk = nil
		return read
	}
	s.shrunk = read.text
	if !inUse.lacks(read) {
		return inUse
	}
	return inUse.and(read)
}

// report warns that the files cannot be used, once for each cause and then once in warnPeriod.
func (s *source) report(now time.Time, err error) {
	if err == nil {
		s.broken.Store(nil)
		s.warned = ""
		return
	}
	s.broken.Store(&err)
	if cause := err.Error(); cause != s.warned || now.Sub(s.warnedAt) >= warnPeriod {
		s.warned, s.warnedAt = cause, now
		s.logger.Warn("cannot load certificate files; keeping the certificates in use",
			"error", err, s.names(), "expire", s.inUse.Load().expiry())
	}
}

// Authorities returns the authorities of peers in use; nil without a CAFile. The pool is another
// one after the content of the file has changed, and only then. Callers must not change it.
func (s *source) Authorities() *x509.CertPool { return s.current().pool }

func (s *source) names() slog.Attr {
	return slog.Group("files", "cert", s.files.CertFile, "key", s.files.KeyFile, "ca", s.files.CAFile)
}

// Check reads the files if they have not been read for a second. It returns why their content
// cannot be used, or nil.
func (s *source) Check() error {
	s.current()
	if err := s.broken.Load(); err != nil {
		return fmt.Errorf("certificate files are not usable; the certificates in use expire at %s: %w",
			s.inUse.Load().expiry().UTC().Format(time.RFC3339), *err)
	}
	return nil
}

// expiry returns when the first part of the material expires: the certificate, or an authority that
// is still valid.
func (m *material) expiry() time.Time {
	return earliest(m.keyPair.expiry(), m.authorities.expiry(time.Now()))
}

// expiry returns when the leaf expires; zero without a certificate.
func (p keyPair) expiry() time.Time {
	if p.certificate == nil || p.certificate.Leaf == nil {
		return time.Time{}
	}
	return p.certificate.Leaf.NotAfter
}

// expiry returns when the next authority expires. Authorities that have expired already count only
// if no valid one remains, because a bundle may keep the former authority for a while. It is zero
// without a CAFile.
func (a authorities) expiry(now time.Time) time.Time {
	var next, last time.Time
	for _, certificate := range a.certificates {
		last = latest(last, certificate)
		if certificate.NotAfter.After(now) {
			next = earliest(next, certificate.NotAfter)
		}
	}
	if next.IsZero() {
		return last
	}
	return next
}

func latest(t time.Time, certificate *x509.Certificate) time.Time {
	if certificate.NotAfter.After(t) {
		return certificate.NotAfter
	}
	return t
}

// earliest returns the earlier of two times; a zero time does not count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
