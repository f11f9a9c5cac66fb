// Package atomicfile replaces files so that readers, a crash and a power cut find the old content
// or the new one, whole.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write replaces the file at path, or makes it, with permissions mode. Its directory must exist.
// The new content is on disk before it has the name. If Write fails, the former file remains, and
// no temporary one does.
func Write(path string, content []byte, mode os.FileMode) error {
	return WriteWith(path, content, mode, nil)
}

// WriteWith is Write. It calls prepare with the temporary file before that has mode and its name,
// for example to give it to another user. A nil prepare does nothing.
func WriteWith(path string, content []byte, mode os.FileMode, prepare func(*os.File) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(content)
	if prepare != nil {
		err = errors.Join(err, prepare(file))
	}
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
