package devcluster

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	etcdName      = "etcd"
	apiServerName = "kube-apiserver"

	assetsDirName     = ".assets"
	assetsEnvironment = "KUBEBUILDER_ASSETS"
)

// MissingBinaryError says that the binary of a server is missing or not executable.
type MissingBinaryError struct {
	Path  string
	Cause error
}

func (e *MissingBinaryError) Error() string {
	return fmt.Sprintf("no binary %s (%v): run `make assets`, or point %s to a directory that has etcd and kube-apiserver",
		e.Path, e.Cause, assetsEnvironment)
}

func (e *MissingBinaryError) Unwrap() error { return e.Cause }

// assetsDir returns the directory of the binaries.
func assetsDir(configured string) string {
	if dir := os.Getenv(assetsEnvironment); dir != "" {
		return dir
	}
	if configured != "" {
		return configured
	}
	if dir, err := os.Getwd(); err == nil {
		if found, ok := findUpwards(dir); ok {
			return found
		}
	}
	if executable, err := os.Executable(); err == nil {
		if found, ok := findUpwards(filepath.Dir(executable)); ok {
			return found
		}
	}
	return assetsDirName
}

func findUpwards(dir string) (string, bool) {
	for {
		candidate := filepath.Join(dir, assetsDirName)
		if info, err := os.Stat(candidate); err == nil && info.IsDir() {
			return candidate, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}

// binary returns the absolute path of an executable, because the children run in another directory.
func binary(dir, name string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", fmt.Errorf("find %s in %s: %w", name, dir, err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", &MissingBinaryError{Path: path, Cause: err}
	case info.IsDir() || info.Mode()&0o111 == 0:
		return "", &MissingBinaryError{Path: path, Cause: os.ErrPermission}
	}
	return path, nil
}
