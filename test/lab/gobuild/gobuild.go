// Package gobuild builds the commands of this repository for tests that run them as processes.
package gobuild

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

const (
	module = "github.com/trivet-dev/trivet/"
	server = "trivet-server"
)

var (
	mu    sync.Mutex // guards built, and is held during a build
	built = map[string]error{}
)

// Command returns the path of a command: a server, another command of cmd/, or trivet-lab. A test
// binary builds each command once, without the race detector, into a folder beside itself.
// `go test` removes the folder at the end; beside a test binary of `go test -c` it stays. All
// commands are in the same folder.
func Command(t testing.TB, name string) string {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, program := filepath.Join(filepath.Dir(executable), "commands"), name
	if slices.Contains(servers(), name) {
		program = server
	}
	mu.Lock()
	defer mu.Unlock()
	err, done := built[program]
	if !done {
		err = build(dir, program)
		built[program] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

func build(dir, program string) error {
	folder := "cmd/"
	if program == "trivet-lab" {
		folder = "test/lab/cmd/"
	}
	command := exec.Command("go", "build", "-o", filepath.Join(dir, program), module+folder+program)
	command.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build`; tests with the race detector have cgo
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, output)
	}
	if program == server {
		return LinkServers(dir)
	}
	return nil
}

// LinkServers makes the links to trivet-server in dir that select a server by its name. A name that
// exists stays: older commits have a command for each server.
func LinkServers(dir string) error {
	for _, name := range servers() {
		if err := os.Symlink(server, filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func servers() []string { return []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"} }
