package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runtimes puts tools made of shell on PATH, and nothing else but the shell's own tools. A tool
// answers its probe with the given lines and notes each import in the file loads.
func runtimes(t *testing.T, answers map[string]string) (loads func() string) {
	t.Helper()
	dir := t.TempDir()
	for tool, answer := range answers {
		script := "#!/bin/sh\ncase \"$*\" in\n" +
			"*load*|*import*) echo " + tool + " \"$@\" >> " + filepath.Join(dir, "loads") + "\nfor a; do if [ -s \"$a\" ]; then echo not empty >> " + filepath.Join(dir, "loads") + "; fi; done;;\n" +
			"*) " + answer + ";;\nesac\n"
		writeFile(t, dir, tool, 0o700, []byte(script), time.Now())
	}
	t.Setenv("PATH", dir)
	return func() string {
		content, err := os.ReadFile(filepath.Join(dir, "loads"))
		if err != nil {
			return ""
		}
		return string(content)
	}
}

func TestLoad_GivesTheImageToTheRuntimeThatIsThere(t *testing.T) {
	b, _ := newBuild(t, testRelease())
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	const down = "echo cannot connect >&2; exit 1"
	for name, c := range map[string]struct {
		answers map[string]string
		runtime string
		load    string // the call that imports, up to the archive
		says    string // of output or error
	}{
		"containerd": {map[string]string{"ctr": "echo 2.4.2"}, "auto", "ctr --namespace k8s.io images import ", "containerd has docker.io/library/trivet:v1.2.3"},
		"docker":     {map[string]string{"docker": "echo 28.1", "ctr": "echo 2.4.2"}, "auto", "docker load --input ", "docker has "},
		"kind":       {map[string]string{"docker": "echo 28.1", "kind": "echo one"}, "auto", "kind load image-archive ", "kind has "},
		"no cluster": {map[string]string{"docker": "echo 28.1", "kind": ":"}, "auto", "docker load --input ", "docker has "},
		"chosen":     {map[string]string{"docker": "echo 28.1", "ctr": "echo 2.4.2"}, "containerd", "ctr --namespace k8s.io images import ", "containerd has "},
		"two kinds":  {map[string]string{"kind": "echo one; echo two"}, "auto", "", "set KIND_CLUSTER_NAME"},
		"none":       {map[string]string{"docker": down}, "auto", "", "kind: kind is not on PATH"},
		"down":       {map[string]string{"docker": down}, "docker", "", "cannot connect"},
		"unknown":    {map[string]string{"ctr": "echo 2.4.2"}, "podman", "", "none of auto"},
	} {
		t.Run(name, func(t *testing.T) {
			loads := runtimes(t, c.answers)
			var output bytes.Buffer
			err := run(t.Context(), []string{"load", "--layout", filepath.Join(b.out, layoutName), "--name", "trivet:v1.2.3", "--runtime", c.runtime}, &output)
			said := output.String()
			if err != nil {
				said += err.Error()
			}
			if !strings.Contains(said, c.says) {
				t.Errorf("says %q, want %q", said, c.says)
			}
			if got := loads(); !strings.HasPrefix(got, c.load) || (got == "") != (c.load == "") || (got != "" && !strings.Contains(got, "not empty")) {
				t.Errorf("imports are %q, want %q with an archive", got, c.load)
			}
			if (err == nil) != (c.load != "") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestLoad_SaysThatNoImageIsBuilt(t *testing.T) {
	runtimes(t, map[string]string{"ctr": "echo 2.4.2"})
	err := run(t.Context(), []string{"load", "--layout", filepath.Join(t.TempDir(), "image"), "--name", "trivet:v1"}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "make image") {
		t.Errorf("error %v, want one that says what to run", err)
	}
}
