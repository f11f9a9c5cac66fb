package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const repository = "../.."

// instruction is one instruction of a Dockerfile, its lines joined.
type instruction struct{ verb, rest string }

// stages returns the instructions of each stage of deploy/Dockerfile; the first has what precedes
// them.
func stages(t *testing.T) [][]instruction {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, "deploy", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	joined := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(content), "")
	joined = regexp.MustCompile(`\\\n\s*`).ReplaceAllString(joined, "")
	all := [][]instruction{nil}
	for line := range strings.Lines(joined) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if verb == "" {
			continue
		}
		if verb == "FROM" {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], instruction{verb, rest})
	}
	return all
}

// The files of both images come from one function: the last stage starts from nothing and copies
// what `image tree` writes, and nothing else adds a file.
func TestDockerfile_HasTheFilesThatImageTreeWrites(t *testing.T) {
	all := stages(t)
	if len(all) != 3 {
		t.Fatalf("the Dockerfile has %d stages, want one that builds and one that is shipped", len(all)-1)
	}
	build, shipped := all[1], all[2]
	tree := regexp.MustCompile(`^cd tools/image && go run \. tree --platform "\$TARGETOS/\$TARGETARCH" --version "\$VERSION" --out /out$`)
	if last := build[len(build)-1]; last.verb != "RUN" || !tree.MatchString(last.rest) {
		t.Errorf("the build ends with %v, want image tree", last)
	}
	if shipped[0].rest != "scratch" {
		t.Errorf("the image starts from %q, want scratch", shipped[0].rest)
	}
	var files []instruction
	for _, i := range shipped {
		if slices.Contains([]string{"ADD", "COPY", "RUN", "VOLUME"}, i.verb) {
			files = append(files, i)
		}
	}
	if want := []instruction{{"COPY", "--from=build /out/ /"}}; !slices.Equal(files, want) {
		t.Errorf("instructions that add files: %v, want %v", files, want)
	}
}

func TestDockerfile_HasTheConfigurationOfTheImage(t *testing.T) {
	b, _ := newBuild(t, release{version: "$VERSION"})
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	content, err := layoutContent(filepath.Join(b.out, layoutName))
	if err != nil {
		t.Fatal(err)
	}
	image, err := content.preferred.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := []instruction{{"USER", image.Config.User}, {"WORKDIR", image.Config.WorkingDir}}
	for _, setting := range image.Config.Env {
		want = append(want, instruction{"ENV", setting})
	}
	shipped := stages(t)[2]
	for _, i := range want {
		if !slices.Contains(shipped, i) {
			t.Errorf("the Dockerfile misses %v", i)
		}
	}
	labels := shipped[slices.IndexFunc(shipped, func(i instruction) bool { return i.verb == "LABEL" })].rest
	for key, value := range image.Config.Labels {
		if key != labelsPrefix+"created" && !strings.Contains(labels, fmt.Sprintf("%s=%q", key, value)) {
			t.Errorf("the Dockerfile misses the label %s=%q", key, value)
		}
	}
}

// ignorePatterns are the patterns of a .dockerignore, of which the last that matches decides.
type ignorePatterns []struct {
	expression *regexp.Regexp
	include    bool
}

func readIgnorePatterns(t *testing.T) ignorePatterns {
	t.Helper()
	content, err := os.Open(filepath.Join(repository, "deploy", "Dockerfile.dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	patterns := make(ignorePatterns, 0, 16)
	for lines := bufio.NewScanner(content); lines.Scan(); {
		pattern, include := strings.CutPrefix(lines.Text(), "!")
		if pattern == "" || strings.HasPrefix(pattern, "#") {
			continue
		}
		expression := regexp.QuoteMeta(pattern)
		expression = strings.ReplaceAll(expression, `\*\*/`, `(.*/)?`)
		expression = strings.ReplaceAll(expression, `\*`, `[^/]*`)
		patterns = append(patterns, struct {
			expression *regexp.Regexp
			include    bool
		}{regexp.MustCompile("^" + expression + "$"), include})
	}
	return patterns
}

// includes says whether the build gets a file. A pattern that matches a directory matches what is
// in it.
func (p ignorePatterns) includes(name string) bool {
	included := true
	for _, pattern := range p {
		for part := name; part != "."; part = path.Dir(part) {
			if pattern.expression.MatchString(part) {
				included = pattern.include
				break
			}
		}
	}
	return included
}

// A build that gets only what .dockerignore lets through finds all packages and all files that they
// embed.
func TestDockerignore_LetsThroughWhatTheBuildReads(t *testing.T) {
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = repository
	names, err := list.Output()
	if err != nil {
		t.Skipf("git does not list the files of this tree: %v", err)
	}
	root, patterns, secrets := t.TempDir(), readIgnorePatterns(t), 0
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if !patterns.includes(name) {
			secrets++
			continue
		}
		if _, err := os.Stat(filepath.Join(repository, name)); err != nil {
			continue // deleted, and not committed yet
		}
		target := filepath.Join(root, name)
		source, err := filepath.Abs(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		// Embedded files must be regular, so the tree has links of this file system only.
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(source, target); err != nil {
			t.Fatal(err)
		}
	}
	if secrets == 0 {
		t.Error(".dockerignore keeps nothing out")
	}
	for _, kept := range []string{"certs/tls.key", "README.md", "deploy/overlays/secret.yaml", "internal/loop/loop_test.go", ".git/config"} {
		if patterns.includes(kept) {
			t.Errorf(".dockerignore lets %s through", kept)
		}
	}
	for dir, built := range map[string][]string{".": packages(), "tools/image": {"."}} {
		command := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-f", "{{with .Error}}{{.}}{{end}}"}, built...)...)
		command.Dir = filepath.Join(root, dir)
		command.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("a build of %s in the filtered tree: %v\n%s", dir, err, output)
		}
	}
}

func copyFile(source, target string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return os.WriteFile(target, content, 0o644)
}
