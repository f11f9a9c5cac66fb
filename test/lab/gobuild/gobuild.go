// Package gobuild builds the commands of this repository for tests that run them as processes.
package gobuild

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const module = "github.com/trivet-dev/trivet/"

// Command returns the path of a command: a server, another command of cmd/, or trivet-lab. The
// first call in a test binary builds them all, without the race detector, into a folder beside the
// binary: a later call may stand under a time limit. `go test` removes the folder at the end;
// beside a test binary of `go test -c` it stays.
func Command(t testing.TB, name string) string {
	t.Helper()
	dir, err := commands()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

var commands = sync.OnceValues(func() (dir string, err error) {
	executable, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(filepath.Dir(executable), "commands")
	build := exec.Command("go", "build", "-o", dir+"/", module+"cmd/...", module+"test/lab/cmd/trivet-lab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build`; tests with the race detector have cgo
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the commands: %w\n%s", err, output)
	}
	return dir, LinkServers(dir)
})

// LinkServers makes the links to trivet-server in dir that select a server by its name. A name that
// exists stays: older commits have a command for each server.
func LinkServers(dir string) error {
	for _, name := range servers() {
		if err := os.Symlink("trivet-server", filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func servers() []string { return []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"} }
