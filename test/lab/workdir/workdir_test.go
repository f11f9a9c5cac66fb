package workdir

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

const prefix = "trivet-workdir-"

func TestSweep_KeepsLockedRecentAndForeignDirectories(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	abandoned, err := Open("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := abandoned.lock.Close(); err != nil {
		t.Fatal(err)
	}
	used, err := Open("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(temp, prefix+"elses.txt")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	now := time.Now()
	sweep(temp, prefix, now)
	requireEntries(t, temp, abandoned.path, used.path, other)
	sweep(temp, prefix, now.Add(2*sweepAge))
	requireEntries(t, temp, used.path, other)
	if err := used.Close(); err != nil {
		t.Fatal(err)
	}
	requireEntries(t, temp, other)
}

func TestOpen_NamedDirectoryIsLockedAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	first, err := Open(path, prefix)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Open(path, prefix); err == nil {
		t.Errorf("a directory in use was opened again: %v", second)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path, prefix)
	if err != nil {
		t.Fatalf("a directory that was released: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	requireEntries(t, path, filepath.Join(path, lockName))
}

func requireEntries(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, filepath.Join(dir, entry.Name()))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("entries are %v, want %v", got, want)
	}
}

// Every user may make a directory with the prefix in the folder of temporary files.
func TestSweep_FollowsNoLinkOfAForeignDirectory(t *testing.T) {
	temp := t.TempDir()
	foreign, target := filepath.Join(temp, prefix+"foreign"), filepath.Join(t.TempDir(), "target")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(foreign, lockName)); err != nil {
		t.Fatal(err)
	}
	sweep(temp, prefix, time.Now().Add(2*sweepAge))
	if _, err := os.Lstat(target); !os.IsNotExist(err) {
		t.Errorf("the sweep has made the file that a link names: %v", err)
	}
	requireEntries(t, temp, foreign)
}

// Private keys are written into the directory.
func TestOpen_ADirectoryThatOthersWriteIsRefused(t *testing.T) {
	forAll := filepath.Join(t.TempDir(), "all")
	if err := os.Mkdir(forAll, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(forAll, 0o777); err != nil {
		t.Fatal(err)
	}
	if opened, err := Open(forAll, prefix); err == nil {
		t.Errorf("a directory that every user writes was opened: %v", opened)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root gives a directory away")
	}
	foreign := t.TempDir()
	if err := os.Chown(foreign, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if opened, err := Open(foreign, prefix); err == nil {
		t.Errorf("a directory of another user was opened: %v", opened)
	}
}
