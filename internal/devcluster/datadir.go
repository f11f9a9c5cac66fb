package devcluster

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	tempPattern = "trivet-devcluster-"
	lockName    = "lock"
)

// dataDir is a directory held by one cluster at a time, by a lock that ends
// with the process.
type dataDir struct {
	path      string
	temporary bool
	lock      *os.File
}

// openDataDir makes and locks path; empty: a new temporary directory.
func openDataDir(path string) (*dataDir, error) {
	if path == "" {
		return openTempDir()
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	lock, err := lockDir(path)
	if err != nil {
		return nil, fmt.Errorf("data directory %s is used by another cluster (%w): stop that one, or give Config.DataDir another directory", path, err)
	}
	return &dataDir{path: path, lock: lock}, nil
}

func openTempDir() (*dataDir, error) {
	sweep(os.TempDir(), time.Now())
	path, err := os.MkdirTemp("", tempPattern)
	if err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	lock, err := lockDir(path)
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("lock data directory %s: %w", path, err)
	}
	return &dataDir{path: path, temporary: true, lock: lock}, nil
}

// close releases the directory and removes it if it is temporary.
func (d *dataDir) close() error {
	defer d.lock.Close()
	if !d.temporary {
		return nil
	}
	return os.RemoveAll(d.path)
}

func (d *dataDir) file(name string) string { return filepath.Join(d.path, name) }

func lockDir(path string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// sweepAge keeps sweep away from a directory whose owner has made it but not
// locked it yet.
const sweepAge = time.Minute

// sweep removes temporary directories whose owner was killed. Whatever cannot
// be examined or removed is left alone: it may belong to another user.
func sweep(parent string, now time.Time) {
	leftovers, err := filepath.Glob(filepath.Join(parent, tempPattern+"*"))
	if err != nil {
		return
	}
	for _, path := range leftovers {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < sweepAge {
			continue
		}
		if lock, err := lockDir(path); err == nil {
			os.RemoveAll(path)
			lock.Close()
		}
	}
}
