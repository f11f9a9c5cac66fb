package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	versionVariable = "github.com/trivet-dev/trivet/internal/identity.version"
	// buildTags leaves out gRPC's request traces, which nothing shows: they link html/template,
	// which keeps every method of every type in the binary.
	buildTags = "grpcnotrace"
	// interruptGrace is what the go command gets to remove its work directory after an interrupt.
	interruptGrace = 10 * time.Second
)

// compiler builds the commands of the repository at root.
type compiler struct {
	goTool  string
	root    string
	version string // what the commands say with --version
}

// compile builds all of ./cmd/... for a platform into the directory dir. Equal sources and versions
// of Go make equal binaries, wherever the repository is and however this machine is set up. An
// interrupted compile leaves neither processes nor temporary files.
func (c compiler) compile(ctx context.Context, platform v1.Platform, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	work := dir + ".work"
	defer os.RemoveAll(work)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, c.goTool, "build", "-trimpath", "-buildvcs=false", "-tags", buildTags,
		"-ldflags", "-s -w -buildid= -X "+versionVariable+"="+c.version, "-o", dir+string(filepath.Separator), "./cmd/...")
	command.Dir = c.root
	command.Env = append(compileEnvironment(os.Environ(), platform), "GOTMPDIR="+work)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = interruptGrace
	defer killGroup(command)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	switch err := command.Run(); {
	case ctx.Err() != nil:
		return fmt.Errorf("compile for %s: %w", platform.String(), context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("compile for %s: %w; the go command said:\n%s", platform.String(), err, output.String())
	}
	return nil
}

// killGroup ends the compilers that an interrupted go command has left. An error means that there
// are none.
func killGroup(command *exec.Cmd) {
	if command.Process != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
}

// compileEnvironment returns environment without what changes binaries, and with a platform.
func compileEnvironment(environment []string, platform v1.Platform) []string {
	changing := []string{"GOFLAGS", "GOWORK", "GOEXPERIMENT", "GOFIPS140", "GOAMD64", "GOARM64", "GOOS", "GOARCH", "CGO_ENABLED"}
	kept := slices.DeleteFunc(slices.Clone(environment), func(setting string) bool {
		key, _, _ := strings.Cut(setting, "=")
		return slices.Contains(changing, key)
	})
	return append(kept, "GOFLAGS=", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0",
		"GOOS="+platform.OS, "GOARCH="+platform.Architecture)
}

// trivetLayers returns the files of Trivet's image, as layers: the base, then the commands, which
// dir holds. Everything that the image has is named here and in the functions that this one calls.
//
// The commands share a layer, because they are linked from the same packages: a layer for each is
// half as large again. No layer would be shared with another version, because each command has its
// version in it.
func trivetLayers(dir string) ([][]file, error) {
	authorities, err := rootsFiles()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var commands []file
	for _, entry := range entries {
		commands = append(commands, file{path: "/" + entry.Name(), mode: 0o755, source: filepath.Join(dir, entry.Name())})
	}
	if len(commands) == 0 {
		return nil, errors.New("no command is built")
	}
	return [][]file{append(baseFiles(), authorities...), commands}, nil
}
