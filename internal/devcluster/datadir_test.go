package devcluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestSweep_SparesWhatIsUsedYoungOrNotOurs(t *testing.T) {
	temp := ownTempDir(t)
	abandoned, err := openTempDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := abandoned.lock.Close(); err != nil {
		t.Fatal(err)
	}
	used, err := openTempDir()
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(temp, tempPattern+"elses.txt")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	now := time.Now()
	sweep(temp, now)
	requireEntries(t, temp, abandoned.path, used.path, other)
	sweep(temp, now.Add(2*sweepAge))
	requireEntries(t, temp, used.path, other)
	if err := used.close(); err != nil {
		t.Fatal(err)
	}
	requireEntries(t, temp, other)
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
