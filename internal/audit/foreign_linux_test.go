package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Another program may cut the file off after it has copied it, or append to it. A full disk then
// neither fills the file with zeros nor removes lines of others.
func TestFile_FullDiskLeavesWhatOthersDidToTheFile(t *testing.T) {
	const limit = 4096
	for name, c := range map[string]struct {
		change func(t *testing.T, path string)
		want   string
	}{
		"cut off": {
			change: func(t *testing.T, path string) {
				if err := os.WriteFile(path, []byte(strings.Repeat("y", limit-6)+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			want: strings.Repeat("y", limit-6) + "\n",
		},
		"appended to": {
			change: func(t *testing.T, path string) {
				other, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				if _, err := other.WriteString(strings.Repeat("y", limit-6-len("first\n")) + "\n"); err != nil {
					t.Fatal(err)
				}
			},
			want: "first\n" + strings.Repeat("y", limit-6-len("first\n")) + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			f, err := openFile(path, minFileBytes, 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			first := "first\n"
			if name == "cut off" {
				first = strings.Repeat("x", 2*limit) + "\n"
			}
			if _, err := f.Write([]byte(first)); err != nil {
				t.Fatal(err)
			}
			c.change(t, path)
			limitFileSize(t, limit)
			if _, err := f.Write([]byte("a line that does not fit\n")); err == nil {
				t.Fatal("a line was written to a file that may not grow by as much")
			}
			unlimitFileSize(t)
			if content, err := os.ReadFile(path); err != nil || string(content) != c.want {
				t.Fatalf("the file has %d bytes, %v, want the %d of the other program", len(content), err, len(c.want))
			}
			if _, err := f.Write([]byte("last\n")); err != nil {
				t.Fatal(err)
			}
			if content, err := os.ReadFile(path); err != nil || string(content) != c.want+"last\n" {
				t.Errorf("the file has %d bytes, %v, want the %d of the other program and a line", len(content), err, len(c.want))
			}
		})
	}
}

// A pipe, or a device as /dev/stdout, is no file of which a backup could be made.
func TestFile_PipeIsNeverRenamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDWR, 0) // a write needs a reader
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	f, err := openFile(path, 10, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	for range 3 {
		if _, err := f.Write([]byte("a line\n")); err != nil {
			t.Fatal(err)
		}
	}
	read := make([]byte, 100)
	if n, err := reader.Read(read); err != nil || string(read[:n]) != strings.Repeat("a line\n", 3) {
		t.Errorf("the pipe has %q, %v, want all lines", read[:n], err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the path is not the pipe any more: %v, %v", info, err)
	}
}
