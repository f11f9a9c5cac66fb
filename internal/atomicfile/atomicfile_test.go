package atomicfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/trivet-dev/trivet/internal/atomicfile"
)

func TestWrite_ReplacesContentAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, want := range []struct {
		content string
		mode    os.FileMode
	}{{"old", 0o600}, {"new", 0o644}} {
		if err := atomicfile.Write(path, []byte(want.content), want.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want.content {
			t.Errorf("content %q, %v, want %q", got, err, want.content)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want.mode {
			t.Errorf("mode %v, %v, want %v", info.Mode(), err, want.mode)
		}
	}
}

func TestWriteWith_FailureLeavesTheFormerFileOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := atomicfile.Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	err := atomicfile.WriteWith(path, []byte("new"), 0o600, func(*os.File) error { return refused })
	if !errors.Is(err, refused) {
		t.Errorf("error %v, want %v", err, refused)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("entries %v, %v, want the file only", entries, err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("content %q, %v, want the former one", got, err)
	}
}
