package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// goCommand is a go command made of shell. It notes its calls in a file; list prints two packages,
// and build runs the given lines, in which $out is the path of the binary to make.
type goCommand struct{ dir string }

func newGoCommand(t *testing.T, build ...string) goCommand {
	t.Helper()
	c := goCommand{dir: t.TempDir()}
	script := "#!/bin/sh\n" +
		"echo \"$1\" >> " + filepath.Join(c.dir, "calls") + "\n" +
		"if [ \"$1\" = list ]; then echo a; echo b; exit; fi\n" +
		"out=$4\n" + strings.Join(build, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(c.dir, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c goCommand) builder(out string) (*builder, *bytes.Buffer) {
	progress := new(bytes.Buffer)
	return &builder{goTool: filepath.Join(c.dir, "go"), out: out, stamp: stampName, progress: progress, every: time.Hour}, progress
}

func (c goCommand) calls(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(content)), " ")
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if entry.Name() != ".lock" {
			names = append(names, entry.Name())
		}
	}
	return names
}

func twoTargets() []target {
	return []target{{name: "one", pkg: "example/one", version: "v1"}, {name: "two", pkg: "example/two", version: "v2"}}
}

func TestBuild_BuildsOnceForEveryRecipe(t *testing.T) {
	out := filepath.Join(t.TempDir(), "assets")
	tool := newGoCommand(t, `echo binary > "$out"`)
	b, progress := tool.builder(out)
	for _, step := range []struct {
		recipe string
		calls  string
	}{
		{"first", "list build list build"},
		{"first", "list build list build"},
		{"second", "list build list build list build list build"},
	} {
		if err := b.build(t.Context(), twoTargets(), step.recipe); err != nil {
			t.Fatal(err)
		}
		if calls := tool.calls(t); calls != step.calls {
			t.Errorf("after recipe %q the go command was called for %q, want %q", step.recipe, calls, step.calls)
		}
	}
	if got, want := files(t, out), []string{"one", "two", stampName}; !slices.Equal(got, want) {
		t.Errorf("files are %v, want %v", got, want)
	}
	if !strings.Contains(progress.String(), "two v2: 0 MiB after") {
		t.Errorf("progress does not tell the size:\n%s", progress)
	}
}

func TestBuild_MissingBinaryIsBuiltThoughTheStampIsTrue(t *testing.T) {
	out := t.TempDir()
	b, _ := newGoCommand(t, `echo binary > "$out"`).builder(out)
	if err := b.build(t.Context(), twoTargets(), "recipe"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(out, "one")); err != nil {
		t.Fatal(err)
	}
	if err := b.build(t.Context(), twoTargets(), "recipe"); err != nil {
		t.Fatal(err)
	}
	if got, want := files(t, out), []string{"one", "two", stampName}; !slices.Equal(got, want) {
		t.Errorf("files are %v, want %v", got, want)
	}
}

func TestBuild_FailureQuotesTheGoCommandAndLeavesNothingHalf(t *testing.T) {
	out := t.TempDir()
	b, _ := newGoCommand(t, `echo half > "$out"`, "echo x.go:1: no such thing >&2", "exit 1").builder(out)
	err := b.build(t.Context(), twoTargets(), "recipe")
	if err == nil || !strings.Contains(err.Error(), "build one") || !strings.Contains(err.Error(), "x.go:1: no such thing") {
		t.Errorf("error %v, want the binary and the compiler's words", err)
	}
	if got := files(t, out); len(got) != 0 {
		t.Errorf("left after a failure: %v", got)
	}
}

func TestBuild_InterruptLeavesThePreviousBinaryWhole(t *testing.T) {
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "one"), []byte("previous"), 0o700); err != nil {
		t.Fatal(err)
	}
	b, _ := newGoCommand(t, "trap 'exit 1' INT", `echo half > "$out"`, "while :; do /bin/sleep 0.01; done").builder(out)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.build(ctx, twoTargets(), "recipe") }()
	for deadline := time.Now().Add(10 * time.Second); !slices.Contains(files(t, out), "one"+partialSuffix); {
		if time.Now().After(deadline) {
			t.Fatal("the build has not begun after 10 s")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v, want one that says that the build was interrupted", err)
	}
	if got := files(t, out); !slices.Equal(got, []string{"one"}) {
		t.Errorf("files are %v, want only the previous binary", got)
	}
	if content, err := os.ReadFile(filepath.Join(out, "one")); err != nil || string(content) != "previous" {
		t.Errorf("the previous binary is now %q, %v", content, err)
	}
}

func TestRun_ProvidedBinariesAreUsedAsTheyAre(t *testing.T) {
	provided, out := t.TempDir(), filepath.Join(t.TempDir(), "assets")
	t.Setenv(assetsEnvironment, provided)
	if err := os.WriteFile(filepath.Join(provided, "etcd"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), out, false, false)
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver") || strings.Contains(err.Error(), "misses etcd") {
		t.Errorf("error %v, want one that misses kube-apiserver only", err)
	}
	if err := os.WriteFile(filepath.Join(provided, "kube-apiserver"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), out, false, false); err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), out, true, false); err == nil || !strings.Contains(err.Error(), "kube-controller-manager") {
		t.Errorf("with rivals: error %v, want one that misses kube-controller-manager", err)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was made though nothing had to be built (%v)", out, err)
	}
}

func TestMeter_TellsHowFarTheBuildIs(t *testing.T) {
	m := newMeter("thing", 300)
	for range 100 {
		if _, err := m.Write([]byte("example/a\nexample/b\nexam")); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := m.String(), "  thing: 0s, 200 of at most 300 packages compiled, now at example/b"; got != want {
		t.Errorf("progress is %q, want %q", got, want)
	}
	if lines := strings.Split(m.lastWords(), "\n"); len(lines) != linesKept+1 || lines[linesKept] != "exam" {
		t.Errorf("last words are %q", lines)
	}
}
