package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// minFileBytes is the least limit of a file, which any record fits into.
const minFileBytes = 1 << 20

// file is a file that becomes a backup when it is full. A pipe or a device never is. One goroutine
// uses it.
type file struct {
	path     string
	maxBytes int64
	backups  int

	open *os.File // nil after a failure, until the next write
	// regular says that it is neither a pipe nor a device, whose size is always 0.
	regular bool
	size    int64
}

// openFile opens a file to append to it.
func openFile(path string, maxBytes int64, backups int) (*file, error) {
	f := &file{path: path, maxBytes: maxBytes, backups: backups}
	return f, f.reopen()
}

func (f *file) reopen() error {
	// Records name users and objects, so only the user of the process may read them.
	opened, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := opened.Stat()
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	f.open, f.regular, f.size = opened, info.Mode().IsRegular(), 0
	if !f.regular {
		return nil
	}
	f.size = info.Size()
	if f.endsInAPart(info.Size()) {
		// A crash has cut the last record off. The next one gets a line of its own.
		if _, err := f.open.WriteString("\n"); err != nil {
			return errors.Join(err, f.Close())
		}
		f.size++
	}
	return nil
}

// endsInAPart reports whether the end of the file is not the end of a line.
func (f *file) endsInAPart(size int64) bool {
	if size == 0 {
		return false
	}
	reader, err := os.Open(f.path)
	if err != nil {
		return false // The user may write the file and not read it.
	}
	defer reader.Close()
	last := []byte{'\n'}
	_, err = reader.ReadAt(last, size-1)
	return err == nil && last[0] != '\n'
}

// Write appends one line, or nothing: a part of a line would spoil the next one. After a failure
// the next call opens the file again.
func (f *file) Write(line []byte) (int, error) {
	if f.size > 0 && f.size+int64(len(line)) > f.maxBytes {
		if err := f.rotate(); err != nil {
			return 0, fmt.Errorf("rotate: %w", err)
		}
	}
	if f.open == nil {
		if err := f.reopen(); err != nil {
			return 0, err
		}
	}
	n, err := f.open.Write(line)
	if err != nil {
		return n, errors.Join(err, f.cut(n), f.Close())
	}
	if f.regular {
		f.size += int64(n)
	}
	return n, nil
}

// cut removes the written part of a line, after which the disk was full. Another program may have
// cut the file off or appended to it before, so only where the write has ended counts. If one has
// appended since, the part remains, and reopen ends its line.
func (f *file) cut(written int) error {
	if written == 0 || !f.regular {
		return nil
	}
	end, err := f.open.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	info, err := f.open.Stat()
	if err != nil || info.Size() != end {
		return err
	}
	return f.open.Truncate(end - int64(written))
}

// rotate renames the file to path.1, path.1 to path.2, and so on. The oldest backup is removed.
func (f *file) rotate() error {
	if err := f.Close(); err != nil {
		return err
	}
	if f.backups == 0 {
		if err := os.Remove(f.path); err != nil {
			return err
		}
	}
	for i := f.backups; i > 0; i-- {
		if err := os.Rename(f.backup(i-1), f.backup(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f.size = 0
	return nil
}

// backup returns the path of a backup; the file itself is number 0.
func (f *file) backup(number int) string {
	if number == 0 {
		return f.path
	}
	return fmt.Sprintf("%s.%d", f.path, number)
}

// Close closes the file if it is open.
func (f *file) Close() error {
	if f.open == nil {
		return nil
	}
	err := f.open.Close()
	f.open = nil
	return err
}
