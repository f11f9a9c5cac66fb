package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// outputs returns the content of all files below dir, by path.
func outputs(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, nameErr := filepath.Rel(dir, path)
		all[name] = string(content)
		return errors.Join(err, nameErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Two builds elsewhere, of binaries with other times, by another user's mask, make the same bytes.
func TestBuild_EqualSourcesMakeEqualOutput(t *testing.T) {
	var built [2]map[string]string
	for i, changed := range []time.Time{time.Unix(1_000_000_000, 0), time.Now()} {
		b, dir := newBuild(t, testRelease())
		for _, binary := range []string{"amd64/trivet-server", "arm64/trivet"} {
			if err := os.Chtimes(filepath.Join(dir, binary), changed, changed); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.build(t.Context()); err != nil {
			t.Fatal(err)
		}
		built[i] = outputs(t, b.out)
	}
	if !maps.Equal(built[0], built[1]) {
		t.Errorf("two builds differ: %v and %v", slices.Sorted(maps.Keys(built[0])), slices.Sorted(maps.Keys(built[1])))
	}
	for _, name := range []string{digestName, "trivet_linux_amd64.cdx.json", "trivet_linux_arm64.cdx.json", "image/index.json", "image/oci-layout"} {
		if built[0][name] == "" {
			t.Errorf("the build makes no %s", name)
		}
	}
	other, _ := newBuild(t, release{version: "v1.2.4"})
	if err := other.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	if outputs(t, other.out)[digestName] == built[0][digestName] {
		t.Error("another version has the same digest")
	}
}

func TestBuild_ImageHasPlatformsLabelsAndFiles(t *testing.T) {
	b, _ := newBuild(t, testRelease())
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(b.out, layoutName)
	top, err := layout.ImageIndexFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top, validate.Fast); err != nil {
		t.Error(err)
	}
	index, err := top.ImageIndex(descriptorOf(t, path).Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{
		"org.opencontainers.image.version":  "v1.2.3",
		"org.opencontainers.image.revision": "0123456789abcdef",
		"org.opencontainers.image.created":  "2023-11-14T22:13:20Z",
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":   "https://github.com/trivet-dev/trivet",
		"org.opencontainers.image.title":    "Trivet",
	}
	requireLabels := func(what string, got map[string]string) {
		for key, value := range labels {
			if got[key] != value {
				t.Errorf("%s: %s is %q, want %q", what, key, got[key], value)
			}
		}
	}
	requireLabels("index", manifest.Annotations)
	var platforms []string
	for _, descriptor := range manifest.Manifests {
		platforms = append(platforms, descriptor.Platform.String())
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		requireImage(t, image, descriptor.Platform.Architecture)
		imageManifest, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		requireLabels("manifest", imageManifest.Annotations)
		requireLabels("configuration", config.Config.Labels)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms are %v, want %v", platforms, want)
	}
}

func requireImage(t *testing.T, image v1.Image, architecture string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != architecture || config.Config.User != "65532:65532" || config.Created.Unix() != 1_700_000_000 || config.Config.Entrypoint != nil {
		t.Errorf("configuration is %+v", config)
	}
	var names []string
	for _, entry := range imageEntries(t, image) {
		name := entry.name
		if entry.link != "" {
			name += " -> " + entry.link
		}
		names = append(names, name)
	}
	want := []string{"etc/", "etc/group", "etc/passwd", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt", "tmp/",
		"bootstrapsvc -> trivet-server", "gateway -> trivet-server", "leasesvc -> trivet-server", "slicesvc -> trivet-server",
		"trivet", "trivet-agent", "trivet-server"}
	if !slices.Equal(names, want) {
		t.Errorf("files are %v, want %v", names, want)
	}
	if len(config.RootFS.DiffIDs) != 2 || len(config.History) != 2 {
		t.Errorf("there are %d layers and %d of them have a history, want one for the base and one for the commands", len(config.RootFS.DiffIDs), len(config.History))
	}
}

func TestBuild_CompilesAsReproducibleBuildsMust(t *testing.T) {
	t.Setenv("GOFLAGS", "-tags=other")
	t.Setenv("GOAMD64", "v3")
	b, dir := newBuild(t, testRelease())
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(calls)), "\n")
	if len(lines) != 2 {
		t.Fatalf("the go command was called %d times", len(lines))
	}
	for i, platform := range []string{"linux/amd64", "linux/arm64"} {
		for _, part := range []string{platform + " cgo=0 flags= build -trimpath -buildvcs=false -tags grpcnotrace -ldflags -s -w -buildid= -X ", ".version=v1.2.3 -o ", " ./cmd/trivet ./cmd/trivet-agent ./cmd/trivet-server"} {
			if !strings.Contains(lines[i], part) {
				t.Errorf("call %q lacks %q", lines[i], part)
			}
		}
	}
}

func TestBuild_FailureKeepsThePreviousImage(t *testing.T) {
	b, dir := newBuild(t, testRelease())
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := outputs(t, b.out)
	b.limit = 1000
	if err := b.build(t.Context()); err == nil || !strings.Contains(err.Error(), "linux/amd64 is") {
		t.Errorf("error %v, want one about the size", err)
	}
	b.limit = maxCompressed
	writeFile(t, dir, "go", 0o700, []byte("#!/bin/sh\necho x.go:1: no such thing >&2\nexit 1\n"), time.Now())
	if err := b.build(t.Context()); err == nil || !strings.Contains(err.Error(), "x.go:1: no such thing") {
		t.Errorf("error %v, want the words of the compiler", err)
	}
	if !maps.Equal(before, outputs(t, b.out)) {
		t.Error("a failed build changed the output of the previous one")
	}
}

func TestBuild_InterruptLeavesNothing(t *testing.T) {
	b, dir := newBuild(t, testRelease())
	writeFile(t, dir, "go", 0o700, []byte("#!/bin/sh\nmkdir \"$GOTMPDIR/left\"\n(echo $$ > "+dir+"/child; exec sleep 600) &\nwait\n"), time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.build(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if content, err := os.ReadFile(filepath.Join(dir, "child")); err == nil && len(content) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the build has not begun after a minute")
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want one that says that the build was interrupted", err)
	}
	if left, err := os.ReadDir(b.out); err != nil || len(left) != 0 {
		t.Errorf("left in the output directory: %v, %v", left, err)
	}
}

// The files that deploy/Dockerfile takes are those of the image, with the same modes, also in a
// directory that has files of another version.
func TestTree_HasTheFilesOfTheImage(t *testing.T) {
	b, _ := newBuild(t, testRelease())
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	content, err := layoutContent(filepath.Join(b.out, layoutName))
	if err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "out")
	writeFile(t, tree, servers()[0], 0o700, []byte("a command of its own"), time.Now())
	if err := os.Symlink(servers()[0], filepath.Join(tree, commands()[0])); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := writeTrivetTree(t.Context(), b.compiler, b.platforms[0], tree, b.progress); err != nil {
			t.Fatal(err)
		}
	}
	written, links := 0, 0
	for _, entry := range imageEntries(t, content.preferred) {
		target := filepath.Join(tree, entry.name)
		if entry.link != "" {
			if link, err := os.Readlink(target); err != nil || link != entry.link {
				t.Errorf("%s is a link to %q in the tree (%v), to %q in the image", entry.name, link, err, entry.link)
			}
			links++
			continue
		}
		info, err := os.Lstat(target)
		if err != nil {
			t.Error(err)
			continue
		}
		mode := int64(info.Mode().Perm())
		if info.Mode()&os.ModeSticky != 0 {
			mode |= 0o1000
		}
		if mode != entry.mode {
			t.Errorf("%s has mode %o in the tree, %o in the image", entry.name, mode, entry.mode)
		}
		if info.Mode().IsRegular() {
			written++
		}
	}
	if files := len(outputs(t, tree)); files != written+links {
		t.Errorf("the tree has %d files and links, the image %d and %d", files, written, links)
	}
}

// A manifest that starts a command by its name in the image starts one that the image has. The
// chart's templates name the servers by a variable; tests of the chart compare what they render to.
func TestImage_HasTheCommandsOfTheManifests(t *testing.T) {
	layers, err := trivetLayers(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inImage, started := map[string]bool{}, map[string]bool{}
	for _, f := range slices.Concat(layers...) {
		inImage[f.path] = f.mode.Perm()&0o111 != 0 && !f.mode.IsDir()
	}
	err = filepath.WalkDir(filepath.Join(repository, "deploy"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Type()&os.ModeSymlink != 0 {
			return err
		}
		content, err := os.ReadFile(path)
		for _, command := range regexp.MustCompile(`(?m)^\s*command: \[(/[\w-]+)\]`).FindAllStringSubmatch(string(content), -1) {
			started[command[1]] = true
			if !inImage[command[1]] {
				t.Errorf("%s starts %s, which the image does not have", path, command[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(servers(), "trivet", "trivet-agent") {
		if !started["/"+name] {
			t.Errorf("no manifest starts /%s", name)
		}
	}
}

func TestBill_NamesBinariesModulesAndAuthorities(t *testing.T) {
	b, _ := newBuild(t, testRelease())
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	content := outputs(t, b.out)["trivet_linux_arm64.cdx.json"]
	var bill cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewBufferString(content), cdx.BOMFileFormatJSON).Decode(&bill); err != nil {
		t.Fatal(err)
	}
	if bill.Metadata.Timestamp != "2023-11-14T22:13:20Z" || bill.Metadata.Component.Version != "v1.2.3" || !strings.HasPrefix(bill.SerialNumber, "urn:uuid:") {
		t.Errorf("metadata are %+v, serial number %q", bill.Metadata, bill.SerialNumber)
	}
	references := map[string]cdx.Component{}
	for _, component := range *bill.Components {
		references[component.BOMRef] = component
	}
	for _, want := range []string{"/trivet", "/trivet-agent", "/trivet-server", "pkg:golang/example.com/linked@v1.2.3", "pkg:golang/std@1.26.8"} {
		if references[want].BOMRef == "" {
			t.Errorf("%s is missing in %v", want, slices.Sorted(maps.Keys(references)))
		}
	}
	if !strings.Contains(content, "pkg:golang/"+rootsModule+"@v0.") {
		t.Error("the module of the public authorities is missing")
	}
	for _, dependency := range *bill.Dependencies {
		for _, on := range *dependency.Dependencies {
			if references[on].BOMRef == "" {
				t.Errorf("%s depends on %s, which is not described", dependency.Ref, on)
			}
		}
	}
}
