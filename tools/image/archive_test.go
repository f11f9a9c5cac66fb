package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// archiveOf makes the archive of one binary with `image archive` and returns its path.
func archiveOf(t *testing.T, imageName string, changed time.Time, options ...string) string {
	t.Helper()
	dir := t.TempDir()
	binary := writeFile(t, dir, "etcd", 0o700, tinyBinary(elf.EM_X86_64, false, "etcd"), changed)
	out := filepath.Join(dir, "etcd.tar")
	args := slices.Concat([]string{"archive", "--name", imageName, "--out", out}, options, []string{binary})
	if err := run(t.Context(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	return out
}

// extract writes the files of an archive below a directory.
func extract(t *testing.T, archive string) string {
	t.Helper()
	stream, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	dir := t.TempDir()
	for _, entry := range tarEntries(t, stream) {
		writeFile(t, dir, entry.name, 0o600, []byte(entry.content), time.Now())
	}
	return dir
}

func TestArchive_IsReadAsDockerReadsIt(t *testing.T) {
	tag, err := name.NewTag("localhost/etcd:1")
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archiveOf(t, "localhost/etcd:1", time.Now()), &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "amd64" || config.OS != "linux" || !slices.Equal(config.Config.Entrypoint, []string{"/etcd"}) {
		t.Errorf("configuration is %+v", config)
	}
	entries := imageEntries(t, image)
	if etcd := entryNamed(t, entries, "etcd"); etcd.mode != 0o755 || etcd.content != string(tinyBinary(elf.EM_X86_64, false, "etcd")) {
		t.Errorf("etcd has mode %o and %d bytes", etcd.mode, len(etcd.content))
	}
	if tmp := entryNamed(t, entries, "tmp/"); tmp.mode != 0o1777 {
		t.Errorf("/tmp has mode %o", tmp.mode)
	}
	if users := entryNamed(t, entries, "etc/passwd").content; !strings.Contains(users, "root:x:0:0:") || !strings.Contains(users, "nonroot:x:65532:65532:") {
		t.Errorf("/etc/passwd is %q", users)
	}
	for _, entry := range entries {
		if entry.uid != 0 || entry.gid != 0 || entry.time != 0 {
			t.Errorf("%+v has an owner or a time of this machine", entry)
		}
	}
}

// containerd takes an archive with oci-layout as an OCI layout, and the name of the image from the
// annotations in index.json.
func TestArchive_IsReadAsContainerdReadsIt(t *testing.T) {
	for imageName, want := range map[string]string{
		"localhost/etcd:1":         "localhost/etcd:1",
		"etcd:1":                   "docker.io/library/etcd:1",
		"example.org:5000/etcd:v1": "example.org:5000/etcd:v1",
	} {
		dir := extract(t, archiveOf(t, imageName, time.Now()))
		index, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if got := manifest.Manifests[0].Annotations[annotationImageName]; got != want || len(manifest.Manifests) != 1 {
			t.Errorf("%s: containerd would call it %q, want %q", imageName, got, want)
		}
		blobs := requireBlobs(t, dir)
		if blobs != 4 { // two layers, configuration, manifest
			t.Errorf("there are %d blobs, want 4", blobs)
		}
	}
}

// requireBlobs checks that each blob of a layout has the digest that is its name, and counts them.
func requireBlobs(t *testing.T, dir string) int {
	t.Helper()
	blobs, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	for _, blob := range blobs {
		content, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", blob.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != blob.Name() {
			t.Errorf("blob %s has another digest", blob.Name())
		}
	}
	return len(blobs)
}

func TestArchive_EqualFilesMakeEqualArchives(t *testing.T) {
	var archives [2][]byte
	for i, changed := range []time.Time{time.Unix(1_000_000_000, 0), time.Now()} {
		content, err := os.ReadFile(archiveOf(t, "localhost/etcd:1", changed))
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = content
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of one binary differ")
	}
}

func TestArchive_TakesPathsUserAndEntrypoint(t *testing.T) {
	dir := t.TempDir()
	binary := writeFile(t, dir, "kube-apiserver", 0o700, tinyBinary(elf.EM_AARCH64, false, ""), time.Now())
	config := writeFile(t, dir, "config.yaml", 0o600, []byte("a: b\n"), time.Now())
	out := filepath.Join(dir, "out.tar")
	err := run(t.Context(), []string{"archive", "--name", "a:1", "--out", out, "--user", "65532:65532", "--roots=false",
		"--entrypoint", "/usr/local/bin/apiserver", binary + "=/usr/local/bin/apiserver", binary, config + "=/etc/app/config.yaml"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Architecture != "arm64" || c.Config.User != "65532:65532" || !slices.Equal(c.Config.Entrypoint, []string{"/usr/local/bin/apiserver"}) {
		t.Errorf("configuration is %+v", c)
	}
	var names []string
	for _, entry := range imageEntries(t, image) {
		names = append(names, entry.name)
	}
	want := []string{"etc/", "etc/group", "etc/passwd", "tmp/", "usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/apiserver",
		"kube-apiserver", "etc/", "etc/app/", "etc/app/config.yaml"}
	if !slices.Equal(names, want) {
		t.Errorf("entries are %v, want %v", names, want)
	}
}

func TestArchive_RefusesWhatCannotRun(t *testing.T) {
	dir := t.TempDir()
	static := writeFile(t, dir, "static", 0o700, tinyBinary(elf.EM_X86_64, false, ""), time.Now())
	dynamic := writeFile(t, dir, "dynamic", 0o700, tinyBinary(elf.EM_X86_64, true, ""), time.Now())
	arm := writeFile(t, dir, "arm", 0o700, tinyBinary(elf.EM_AARCH64, false, ""), time.Now())
	mips := writeFile(t, dir, "mips", 0o700, tinyBinary(elf.EM_MIPS, false, ""), time.Now())
	text := writeFile(t, dir, "text", 0o600, []byte("text"), time.Now())
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no tag":               {[]string{"--name", "a", static}, "no tag"},
		"no files":             {[]string{"--name", "a:1"}, "are required"},
		"dynamic loader":       {[]string{"--name", "a:1", dynamic}, "CGO_ENABLED=0"},
		"two platforms":        {[]string{"--name", "a:1", static, arm}, "built for arm64"},
		"other platform":       {[]string{"--name", "a:1", mips}, "neither amd64 nor arm64"},
		"no binary":            {[]string{"--name", "a:1", text}, "none of the files"},
		"file twice":           {[]string{"--name", "a:1", static, static}, "twice"},
		"file as directory":    {[]string{"--name", "a:1", static, text + "=/static/text"}, "both as a file and as a directory"},
		"relative path":        {[]string{"--name", "a:1", static + "=bin/a"}, "absolute"},
		"path out of the root": {[]string{"--name", "a:1", static + "=/../a"}, "absolute"},
		"other entrypoint":     {[]string{"--name", "a:1", "--entrypoint", "/other", static}, "none of the executables"},
		"missing file":         {[]string{"--name", "a:1", filepath.Join(dir, "missing")}, "no such file"},
		"directory":            {[]string{"--name", "a:1", dir}, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.tar")
			err := run(t.Context(), append([]string{"archive", "--out", out}, c.args...), io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
			if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 0 {
				t.Errorf("left after a failure: %v, %v", left, err)
			}
		})
	}
}

func TestPublicRoots_AreAuthoritiesThatGoAccepts(t *testing.T) {
	bundle, err := publicRoots()
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		t.Fatal("no certificate is parsed")
	}
	if count := bytes.Count(bundle, []byte("BEGIN CERTIFICATE")); count < 50 {
		t.Errorf("there are %d authorities", count)
	}
	again, err := publicRoots()
	if err != nil || !bytes.Equal(bundle, again) {
		t.Errorf("a second bundle differs (%v)", err)
	}
}

// An archive of several platforms has the blobs of all, and for Docker the image of this machine.
func TestArchive_OfSeveralPlatforms(t *testing.T) {
	b, _ := newBuild(t, testRelease())
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "trivet.tar")
	if err := run(t.Context(), []string{"export", "--layout", filepath.Join(b.out, layoutName), "--name", "trivet:v1.2.3", "--out", out}, io.Discard); err != nil {
		t.Fatal(err)
	}
	dir := extract(t, out)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	// The complete validation of layers knows no zstd; imageEntries reads them instead.
	if err := validate.Index(index, validate.Fast); err != nil {
		t.Error(err)
	}
	// The base is the same for both platforms: base, two layers of commands, two configurations,
	// two manifests, the index.
	if blobs := requireBlobs(t, dir); blobs != 8 {
		t.Errorf("there are %d blobs, want 8", blobs)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := os.ReadFile(filepath.Join(b.out, digestName))
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest.Manifests[0].Digest.String(); got != strings.TrimSpace(string(digest)) {
		t.Errorf("the archive has %s, the build printed %s", got, digest)
	}
	docker, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(docker, validate.Fast); err != nil {
		t.Error(err)
	}
	entryNamed(t, imageEntries(t, docker), "trivet-server")
}

// descriptorOf returns the first descriptor in the index.json of a layout.
func descriptorOf(t *testing.T, dir string) v1.Descriptor {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(content, &index); err != nil {
		t.Fatal(err)
	}
	return index.Manifests[0]
}
