package identity

import (
	"log/slog"
	"os"
	"sync"
	"time"
)

// recheck is how often files are looked at, at most. A handshake costs far more than three stat calls, but a storm of
// reconnects should not become a storm of them.
const recheck = time.Second

// source holds the material in use and replaces it when the files change. It is safe for concurrent use.
type source struct {
	files  Files
	logger *slog.Logger

	mu      sync.Mutex // guards everything below, and keeps concurrent handshakes from reading the files twice
	checked time.Time
	seen    fingerprint
	inUse   *material
}

func newSource(files Files, logger *slog.Logger) (*source, error) {
	// The fingerprint is taken first: a change between it and the reading is then seen as a change once more.
	seen := files.fingerprint()
	first, err := files.read()
	if err != nil {
		return nil, err
	}
	return &source{files: files, logger: logger, checked: time.Now(), seen: seen, inUse: first}, nil
}

// current returns the newest material that could be read.
func (s *source) current() *material {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.checked) < recheck {
		return s.inUse
	}
	s.checked = now
	seen := s.files.fingerprint()
	if seen.equal(s.seen) {
		return s.inUse
	}
	// Remembered even when the files prove broken, so that they are reported once and not at every handshake. Whoever
	// repairs them changes them again.
	s.seen = seen
	s.reload()
	return s.inUse
}

func (s *source) reload() {
	names := slog.Group("files", "cert", s.files.CertFile, "key", s.files.KeyFile, "ca", s.files.CAFile)
	read, err := s.files.read()
	if err != nil {
		s.logger.Error("changed certificate files are unusable; the certificates in use stay", "error", err, names)
		return
	}
	s.inUse = read
	s.logger.Info("certificate files changed and are in use", names)
}

// fingerprint tells one state of the files from another without reading them; an entry is nil for a file that cannot be
// looked at.
type fingerprint [3]os.FileInfo

func (f Files) fingerprint() fingerprint {
	var print fingerprint
	for i, path := range [...]string{f.CertFile, f.KeyFile, f.CAFile} {
		if info, err := os.Stat(path); err == nil {
			print[i] = info
		}
	}
	return print
}

// equal compares identity as well as time and size: Kubernetes swaps a symbolic link to a whole directory, and the file
// behind it may carry any time.
func (p fingerprint) equal(other fingerprint) bool {
	for i := range p {
		if !sameState(p[i], other[i]) {
			return false
		}
	}
	return true
}

func sameState(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
