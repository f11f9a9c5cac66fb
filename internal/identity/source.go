package identity

import (
	"log/slog"
	"os"
	"sync"
	"time"
)

// recheck is the least time between two checks of the files, which bounds the stat calls of many
// reconnects.
const recheck = time.Second

// source holds the material in use and replaces it when the files change. It is safe for concurrent
// use.
type source struct {
	files  Files
	logger *slog.Logger

	mu      sync.Mutex // guards the fields below and serializes reloads
	checked time.Time
	seen    fingerprint
	inUse   *material
}

func newSource(files Files, logger *slog.Logger) (*source, error) {
	// Take the fingerprint first, so that a change during the read is seen later.
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
	// Keep the fingerprint of broken files, too, so that they are reported once.
	s.seen = seen
	s.reload()
	return s.inUse
}

func (s *source) reload() {
	names := slog.Group("files", "cert", s.files.CertFile, "key", s.files.KeyFile, "ca", s.files.CAFile)
	read, err := s.files.read()
	if err != nil {
		s.logger.Error("cannot load changed certificate files; keeping the present certificates", "error", err, names)
		return
	}
	s.inUse = read
	s.logger.Info("certificate files reloaded", names)
}

// fingerprint identifies a state of the files without reading them. An entry is nil for an
// inaccessible file.
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

// equal compares identity, time and size. Kubernetes replaces a symbolic link to a directory, and
// the new file may have any time.
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
