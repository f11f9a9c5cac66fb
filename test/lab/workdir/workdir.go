// Package workdir provides directories that one process uses at a time. A lock marks the directory
// as used and ends with the process.
//
// Close removes a temporary directory. The next Open with the same prefix removes those of killed
// processes, except for locked and recent ones.
package workdir

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockName is the file whose lock marks a directory as used.
const lockName = "lock"

// Dir is a directory that this process holds. It is safe for concurrent use.
type Dir struct {
	path      string
	temporary bool
	lock      *os.File
}

// Open creates and locks the directory at path, with permissions for its owner only. It fails if
// another user is able to replace the files of an existing directory, which may be private keys.
// With an empty path it creates a temporary directory whose name begins with prefix, and removes
// unlocked ones of the same prefix.
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
	if err := checkOwner(path); err != nil {
		return nil, err
	}
	lock, err := hold(path)
	if err != nil {
		return nil, fmt.Errorf("directory %s is used by another process (%w): stop that process, or choose another directory", path, err)
	}
	return &Dir{path: path, lock: lock}, nil
}

// checkOwner lets a group write: a user's own group and that of a mounted volume are common.
func checkOwner(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || int(owner.Uid) != os.Geteuid() && owner.Uid != 0:
		return fmt.Errorf("directory %s belongs to another user: choose another directory", path)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("every user is able to write directory %s: choose another directory, or chmod o-w", path)
	default:
		return nil
	}
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

// Path returns the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// File returns the path of a name in the directory.
func (d *Dir) File(name string) string { return filepath.Join(d.path, name) }

// Close releases the directory, and removes it if it is temporary.
func (d *Dir) Close() error {
	defer d.lock.Close()
	if !d.temporary {
		return nil
	}
	return os.RemoveAll(d.path)
}

// hold does not follow a link: in a directory of another user it would make a file elsewhere.
func hold(path string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// sweepAge protects a directory that was created and is not locked yet.
const sweepAge = time.Minute

// sweep removes temporary directories whose owner was killed. It ignores directories that it cannot
// read or remove, which may belong to another user.
func sweep(parent, prefix string, now time.Time) {
	orphans, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return
	}
	for _, path := range orphans {
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
