package certs

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/atomicfile"
	"github.com/trivet-dev/trivet/internal/certs"
)

// Modes of the files and directories. The group of the directory passes to what is made in it if
// the directory has the setgid bit.
const (
	keyMode    = 0o640
	publicMode = 0o644
	folderMode = 0o750
)

// files returns what the static Pods of a machine read, by the path below their directory. The key
// of Trivet's authority is not among them.
func (m *memory) files() map[string][]byte {
	found := map[string][]byte{}
	add := func(folder string, secret *corev1.Secret, keys ...string) {
		for _, key := range keys {
			if secret != nil && len(secret.Data[key]) > 0 {
				found[filepath.Join(folder, key)] = secret.Data[key]
			}
		}
	}
	for _, server := range certs.Servers() {
		add(server, m.secrets["trivet-"+server+"-tls"], "tls.crt", "tls.key")
		add(filepath.Join("etcd", server), m.secrets[etcdSecret(server)], "ca.crt", "tls.crt", "tls.key")
	}
	if trust := m.configMaps[trustConfigMap]; trust != nil {
		for _, key := range []string{trustKey, clientTrustKey} {
			found[filepath.Join("trust", key)] = []byte(trust.Data[key])
		}
	}
	return found
}

// writeFiles makes the files of a directory equal to files, and leaves other files alone. It
// replaces a file by renaming, so that a reader finds the former or the new content, and calls
// changed for each file that it writes.
func writeFiles(directory string, files map[string][]byte, changed func(path string)) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(directory, name)
		if existing, err := os.ReadFile(path); err == nil && bytes.Equal(existing, files[name]) {
			continue
		}
		if err := makeFolder(filepath.Dir(path)); err != nil {
			return err
		}
		if err := replaceFile(path, files[name]); err != nil {
			return err
		}
		changed(path)
	}
	return nil
}

// makeFolder makes a folder that its group may read, whatever the umask is, if there is none. The
// setgid bit of its parent stays.
func makeFolder(path string) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(path, folderMode); err != nil {
		return err
	}
	made, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Chmod(path, made.Mode()&os.ModeSetgid|folderMode)
}

func replaceFile(path string, content []byte) error {
	mode := os.FileMode(publicMode)
	if filepath.Ext(path) == ".key" {
		mode = keyMode
	}
	return atomicfile.Write(path, content, mode)
}
