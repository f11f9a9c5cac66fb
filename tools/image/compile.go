package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	serverCommand  = "trivet-server"
)

// compiler builds the commands of the repository at root.
type compiler struct {
	goTool  string
	root    string
	version string // what the commands say with --version
}

// commands returns the commands of the image, by the name of their package in cmd/.
func commands() []string { return []string{"trivet", "trivet-agent", serverCommand} }

// packages returns the packages of the commands, as paths from the root of the repository.
func packages() []string {
	var all []string
	for _, name := range commands() {
		all = append(all, "./cmd/"+name)
	}
	return all
}

// servers returns the names of the servers that the command trivet-server has. Each is a link to it
// in the image, because a server is selected by the name under which it starts.
func servers() []string { return []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"} }

// compile builds the commands of the image for a platform into the directory dir. Equal sources and
// versions of Go make equal binaries, wherever the repository is and however this machine is set
// up. An interrupted compile leaves neither processes nor temporary files.
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
	arguments := []string{"build", "-trimpath", "-buildvcs=false", "-tags", buildTags,
		"-ldflags", "-s -w -buildid= -X " + versionVariable + "=" + c.version, "-o", dir + string(filepath.Separator)}
	command := exec.CommandContext(ctx, c.goTool, append(arguments, packages()...)...)
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
// dir holds, and the links to trivet-server. Everything that the image has is named here and in the
// functions that this one calls.
//
// The commands share a layer, because they are linked from the same packages: a layer for each is
// half as large again. No layer would be shared with another version, because each command has its
// version in it.
func trivetLayers(dir string) ([][]file, error) {
	authorities, err := rootsFiles()
	if err != nil {
		return nil, err
	}
	var programs []file
	for _, name := range commands() {
		programs = append(programs, file{path: "/" + name, mode: 0o755, source: filepath.Join(dir, name)})
	}
	for _, name := range servers() {
		programs = append(programs, file{path: "/" + name, mode: fs.ModeSymlink | 0o777, link: serverCommand})
	}
	return [][]file{append(baseFiles(), authorities...), programs}, nil
}
