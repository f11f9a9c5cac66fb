package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	progressEvery   = 10 * time.Second
	stampName       = "versions"
	rivalsStampName = "versions-of-rivals"
	nodesStampName  = "versions-of-nodes"
	partialSuffix   = ".partial"
	// interruptGrace is what the go command gets to remove its work directory after an interrupt.
	interruptGrace = 10 * time.Second
	// buildTags are the Makefile's GOTAGS: Go's build cache shares only what is compiled alike.
	buildTags = "grpcnotrace"
)

// builder builds into one directory.
type builder struct {
	goTool   string
	out      string
	stamp    string // name of the file that says what the binaries were built from
	progress io.Writer
	every    time.Duration // between two lines of progress
}

// build makes the directory hold what targets say. It does nothing if that is so already.
// Concurrent builds wait for each other.
func (b *builder) build(ctx context.Context, targets []target, goMod string) error {
	stamp := stampOf(targets, goMod)
	if b.upToDate(targets, stamp) {
		return nil
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return fmt.Errorf("make directory for the binaries: %w", err)
	}
	unlock, err := b.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if b.upToDate(targets, stamp) {
		return nil
	}
	b.say("Building %s into %s, once. kube-apiserver is some 2,000 packages: that takes 4 to 5 minutes", namesOf(targets), b.out)
	b.say("on two cores when nothing is cached, kube-controller-manager a minute more, and modules are downloaded first.")
	b.say("Later builds take seconds.")
	begin := time.Now()
	if err := b.buildAll(ctx, targets); err != nil {
		return err
	}
	if err := b.writeStamp(stamp); err != nil {
		return err
	}
	b.say("%s: built, %v in all.", namesOf(targets), elapsed(begin))
	return nil
}

func (b *builder) buildAll(ctx context.Context, targets []target) error {
	// A run that was killed may have left its work.
	if err := errors.Join(os.RemoveAll(b.workDir()), os.Mkdir(b.workDir(), 0o755)); err != nil {
		return fmt.Errorf("make directory for the go command: %w", err)
	}
	defer os.RemoveAll(b.workDir())
	for _, t := range targets {
		if err := b.buildOne(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) say(format string, values ...any) {
	fmt.Fprintf(b.progress, format+"\n", values...)
}

func (b *builder) upToDate(targets []target, stamp string) bool {
	content, err := os.ReadFile(filepath.Join(b.out, b.stamp))
	return err == nil && string(content) == stamp && requireBinaries(b.out, targets) == nil
}

// lock keeps others from building into the directory until unlock, or until this process ends.
func (b *builder) lock() (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(b.out, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", b.out, err)
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		b.say("Another build works in %s; waiting for it.", b.out)
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", b.out, err), file.Close())
		}
	}
	return func() { file.Close() }, nil
}

// buildOne puts a binary in its place, whole or not at all.
func (b *builder) buildOne(ctx context.Context, t target) error {
	partial := filepath.Join(b.out, t.name+partialSuffix)
	defer os.Remove(partial)
	begin := time.Now()
	b.say("%s %s: finding its packages …", t.name, t.version)
	packages, err := b.countPackages(ctx, t)
	if err != nil {
		return err
	}
	if err := b.compile(ctx, t, partial, packages); err != nil {
		return err
	}
	info, err := os.Stat(partial)
	if err != nil {
		return fmt.Errorf("build %s: %w", t.name, err)
	}
	if err := os.Rename(partial, filepath.Join(b.out, t.name)); err != nil {
		return fmt.Errorf("put %s into place: %w", t.name, err)
	}
	b.say("%s %s: %d MiB after %v", t.name, t.version, info.Size()>>20, elapsed(begin))
	return nil
}

// countPackages also makes the go command download the modules, as many at a time as GOMAXPROCS
// says. They mostly wait for the network: two at a time leave the processors idle.
func (b *builder) countPackages(ctx context.Context, t target) (int, error) {
	meter := newMeter(t.name, 0)
	stop := meter.report(b.progress, b.every)
	defer stop()
	command := b.command(ctx, "list", "-tags", buildTags, "-deps", t.pkg)
	command.Env = append(command.Env, "GOMAXPROCS=16")
	command.Stderr = meter
	defer killGroup(command)
	output, err := command.Output()
	if err != nil {
		return 0, b.failure(ctx, "find the packages of "+t.pkg, meter, err)
	}
	return strings.Count(string(output), "\n"), nil
}

func (b *builder) compile(ctx context.Context, t target, output string, packages int) error {
	meter := newMeter(t.name, packages)
	stop := meter.report(b.progress, b.every)
	defer stop()
	command := b.command(ctx, "build", "-v", "-o", output, "-tags", buildTags, "-ldflags", t.ldflags, t.pkg)
	command.Stderr = meter
	defer killGroup(command)
	if err := command.Run(); err != nil {
		return b.failure(ctx, "build "+t.name, meter, err)
	}
	return nil
}

// command is an interruptible call of the go command. Binaries without cgo need no C compiler and
// no C library at run time, like upstream's. They look up names and users in /etc and by DNS only,
// which is all that these servers need.
//
// The compilers it starts are in its process group, and work below our own directory: an
// interrupted go command leaves both behind otherwise.
func (b *builder) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, b.goTool, args...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTMPDIR="+b.workDir())
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = interruptGrace
	return command
}

func (b *builder) workDir() string { return filepath.Join(b.out, ".work") }

// killGroup ends what a go command has left running. An error means that nothing has been left.
func killGroup(command *exec.Cmd) {
	if command.Process != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
}

func (b *builder) failure(ctx context.Context, what string, meter *meter, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: interrupted; nothing half built is left", what)
	}
	return fmt.Errorf("%s: %w; the go command said:\n%s", what, err, meter.lastWords())
}

func (b *builder) writeStamp(stamp string) error {
	partial := filepath.Join(b.out, b.stamp+partialSuffix)
	if err := os.WriteFile(partial, []byte(stamp), 0o644); err != nil {
		return fmt.Errorf("write stamp: %w", err)
	}
	if err := os.Rename(partial, filepath.Join(b.out, b.stamp)); err != nil {
		return fmt.Errorf("write stamp: %w", err)
	}
	return nil
}

func elapsed(begin time.Time) time.Duration { return time.Since(begin).Round(time.Second) }
