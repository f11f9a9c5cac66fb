package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// On a full disk a part of a line can be written. The file has whole lines all the same, then and
// once it has space again.
func TestFile_FullDiskLeavesNoPartOfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f, err := openFile(path, 2*minFileBytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	first := strings.Repeat("x", minFileBytes-10) + "\n"
	if _, err := f.Write([]byte(first)); err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, minFileBytes)
	for range 2 {
		if n, err := f.Write([]byte("a line that does not fit\n")); err == nil {
			t.Fatalf("%d bytes were written to a file that may not grow by as many", n)
		}
	}
	if _, err := f.Write([]byte("fits\n")); err != nil {
		t.Fatal(err)
	}
	unlimitFileSize(t)
	if _, err := f.Write([]byte("after it\n")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if rest, ok := bytes.CutPrefix(content, []byte(first)); err != nil || !ok || string(rest) != "fits\nafter it\n" {
		t.Errorf("after the first line the file has %q, %v", rest, err)
	}
	if f.size != int64(len(content)) {
		t.Errorf("size is %d, want %d", f.size, len(content))
	}
}

// A crash can cut the last line off. The next record is a line of its own.
func TestFile_RecordAfterACutOneHasALineOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("whole\ncut o"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"next\n", "last\n"} {
		f, err := openFile(path, minFileBytes, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "whole\ncut o\nnext\nlast\n" {
		t.Errorf("the file has %q, %v", content, err)
	}
}

// limitFileSize makes writes of this process fail beyond a size, as a full disk does.
func limitFileSize(t *testing.T, size uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unlimitFileSize(t) })
}

func unlimitFileSize(t *testing.T) {
	t.Helper()
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &now); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: now.Max, Max: now.Max}); err != nil {
		t.Fatal(err)
	}
}
