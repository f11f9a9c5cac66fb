// Package workdir is a directory that one process holds at a time: by a lock that ends with the process, however it ends.
//
// A temporary one is removed by Close. What a process that was killed has left behind is removed by the next Open of the
// same prefix, so that leftovers do not pile up; a directory whose lock is held, or that is young, is never touched.
package workdir

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockName is the file whose lock says that a directory is in use.
const lockName = "lock"

// Dir is a directory that this process holds. It is safe for concurrent use.
type Dir struct {
	path      string
	temporary bool
	lock      *os.File
}

// Open makes and holds the directory at path, with which its owner alone can do anything. With an empty path it makes a
// new temporary one whose name begins with prefix, and removes those of the same prefix that nobody holds any more.
func Open(path, prefix string) (*Dir, error) {
	if path == "" {
		return openTemporary(prefix)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	lock, err := hold(path)
	if err != nil {
		return nil, fmt.Errorf("directory %s is used by another process (%w): stop that one, or choose another directory", path, err)
	}
	return &Dir{path: path, lock: lock}, nil
}

func openTemporary(prefix string) (*Dir, error) {
	sweep(os.TempDir(), prefix, time.Now())
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, fmt.Errorf("make temporary directory: %w", err)
	}
	lock, err := hold(path)
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("lock directory %s: %w", path, err)
	}
	return &Dir{path: path, temporary: true, lock: lock}, nil
}

// Path is the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// File is the path of a name in the directory.
func (d *Dir) File(name string) string { return filepath.Join(d.path, name) }

// Close releases the directory, and removes it if it is temporary.
func (d *Dir) Close() error {
	defer d.lock.Close()
	if !d.temporary {
		return nil
	}
	return os.RemoveAll(d.path)
}

func hold(path string) (*os.File, error) {
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

// sweepAge keeps sweep away from a directory whose owner has made it but not locked it yet.
const sweepAge = time.Minute

// sweep removes temporary directories whose owner was killed. Whatever cannot be examined or removed is left alone: it may
// belong to another user.
func sweep(parent, prefix string, now time.Time) {
	leftovers, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return
	}
	for _, path := range leftovers {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < sweepAge {
			continue
		}
		if lock, err := hold(path); err == nil {
			os.RemoveAll(path)
			lock.Close()
		}
	}
}
