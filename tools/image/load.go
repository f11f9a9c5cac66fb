package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// probeTimeout bounds how long a runtime may take to say that it is there.
const probeTimeout = 10 * time.Second

// containerRuntime is something that runs containers and can be given an image.
type containerRuntime struct {
	name  string
	tool  string
	probe []string // arguments that succeed, with output, only if the runtime is there
	// load returns the arguments that import an archive; found is what the probe printed.
	load func(found, archive string) ([]string, error)
}

// containerRuntimes returns the runtimes in the order in which they are tried. kind is first,
// because it runs in Docker; containerd is last, because Docker has one that no kubelet uses.
func containerRuntimes() []containerRuntime {
	return []containerRuntime{
		{"kind", "kind", []string{"get", "clusters", "--quiet"}, loadIntoKind},
		{"docker", "docker", []string{"version", "--format", "{{.Server.Version}}"}, func(_, archive string) ([]string, error) {
			return []string{"load", "--input", archive}, nil
		}},
		{"containerd", "ctr", []string{"version"}, func(_, archive string) ([]string, error) {
			return []string{"--namespace", containerdNamespace(), "images", "import", archive}, nil
		}},
	}
}

// loadIntoKind takes the cluster of KIND_CLUSTER_NAME, or else the only one.
func loadIntoKind(found, archive string) ([]string, error) {
	clusters := strings.Fields(found)
	cluster := os.Getenv("KIND_CLUSTER_NAME")
	if cluster == "" && len(clusters) > 1 {
		return nil, fmt.Errorf("there are the clusters %s: set KIND_CLUSTER_NAME to one of them", strings.Join(clusters, ", "))
	}
	if cluster == "" {
		cluster = clusters[0]
	}
	return []string{"load", "image-archive", archive, "--name", cluster}, nil
}

// containerdNamespace is the namespace of kubelets, unless the environment says otherwise.
func containerdNamespace() string {
	if namespace := os.Getenv("CONTAINERD_NAMESPACE"); namespace != "" {
		return namespace
	}
	return "k8s.io"
}

// find returns what the probe prints, or why the runtime is not there.
func (r containerRuntime) find(ctx context.Context) (string, error) {
	path, err := exec.LookPath(r.tool)
	if err != nil {
		return "", fmt.Errorf("%s is not on PATH", r.tool)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, path, r.probe...)
	command.Stdout, command.Stderr, command.WaitDelay = &stdout, &stderr, time.Second
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s does not answer within %v", r.tool, probeTimeout)
		}
		return "", fmt.Errorf("%s %s: %s", r.tool, strings.Join(r.probe, " "), firstLine(stderr.String(), err))
	}
	if strings.TrimSpace(stdout.String()) == "" {
		return "", fmt.Errorf("%s %s: prints nothing", r.tool, strings.Join(r.probe, " "))
	}
	return stdout.String(), nil
}

func firstLine(text string, otherwise error) string {
	if line, _, _ := strings.Cut(strings.TrimSpace(text), "\n"); line != "" {
		return line
	}
	return otherwise.Error()
}

// findRuntime returns the wanted runtime, or the first that is there. Its error says for each why
// it is not there.
func findRuntime(ctx context.Context, wanted string) (containerRuntime, string, error) {
	var problems []error
	for _, r := range containerRuntimes() {
		if wanted != "auto" && wanted != r.name {
			continue
		}
		found, err := r.find(ctx)
		if err == nil {
			return r, found, nil
		}
		problems = append(problems, fmt.Errorf("  %s: %w", r.name, err))
	}
	if len(problems) == 0 {
		return containerRuntime{}, "", fmt.Errorf("runtime %q is none of auto, kind, docker, containerd", wanted)
	}
	return containerRuntime{}, "", fmt.Errorf("no container runtime takes the image:\n%w", errors.Join(problems...))
}

// layoutFlags are the flags of commands that read a built image.
type layoutFlags struct{ layout, name string }

func (l *layoutFlags) register(flags *flag.FlagSet) {
	flags.StringVar(&l.layout, "layout", "", "the OCI layout of the image")
	flags.StringVar(&l.name, "name", "", "name of the image, with a tag")
}

// read returns the name and the image.
func (l *layoutFlags) read() (name.Tag, archiveContent, error) {
	if l.layout == "" || l.name == "" {
		return name.Tag{}, archiveContent{}, usageError("--layout and --name are required")
	}
	tag, err := parseTag(l.name)
	if err != nil {
		return name.Tag{}, archiveContent{}, err
	}
	content, err := layoutContent(l.layout)
	if errors.Is(err, os.ErrNotExist) {
		return name.Tag{}, archiveContent{}, fmt.Errorf("no image is built in %s: run `make image`", l.layout)
	}
	return tag, content, err
}

func runExport(args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("image export", flag.ContinueOnError)
	var image layoutFlags
	image.register(flags)
	out := flags.String("out", "", "the archive to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" {
		return usageError("--out is required")
	}
	tag, content, err := image.read()
	if err != nil {
		return err
	}
	size, err := writeArchiveFile(*out, tag, content)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s %s in %s, %.1f MiB\n", tag, content.root.Digest, *out, mebibytes(size))
	return nil
}

func runLoad(ctx context.Context, args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("image load", flag.ContinueOnError)
	var image layoutFlags
	image.register(flags)
	wanted := flags.String("runtime", "auto", "auto, kind, docker or containerd")
	if err := flags.Parse(args); err != nil {
		return err
	}
	tag, content, err := image.read()
	if err != nil {
		return err
	}
	target, found, err := findRuntime(ctx, *wanted)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "image-load-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	archive := filepath.Join(work, "image.tar")
	if _, err := writeArchiveFile(archive, tag, content); err != nil {
		return err
	}
	arguments, err := target.load(found, archive)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, target.tool, arguments...)
	command.Stdout, command.Stderr = progress, progress
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", target.tool, strings.Join(arguments, " "), err)
	}
	fmt.Fprintf(progress, "%s has %s (%s)\n", target.name, fullName(tag), content.root.Digest)
	return nil
}

// layoutContent returns the image of several platforms that a layout holds.
func layoutContent(dir string) (archiveContent, error) {
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return archiveContent{}, err
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		return archiveContent{}, err
	}
	if len(manifest.Manifests) != 1 || !manifest.Manifests[0].MediaType.IsIndex() {
		return archiveContent{}, fmt.Errorf("%s holds something else than one image for several platforms", dir)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		return archiveContent{}, err
	}
	return indexContent(index)
}

// indexContent is the content of an archive with an image for several platforms. A reader that
// knows one platform only gets the image for this machine, or else the first.
func indexContent(index v1.ImageIndex) (archiveContent, error) {
	root, err := partial.Descriptor(index)
	if err != nil {
		return archiveContent{}, err
	}
	content := archiveContent{root: *root}
	manifest, err := index.IndexManifest()
	if err != nil {
		return archiveContent{}, err
	}
	for _, descriptor := range manifest.Manifests {
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			return archiveContent{}, err
		}
		blobs, err := imageBlobs(image)
		if err != nil {
			return archiveContent{}, err
		}
		content.blobs = append(content.blobs, blobs...)
		if content.preferred == nil || descriptor.Platform != nil && descriptor.Platform.Architecture == runtime.GOARCH {
			content.preferred = image
		}
	}
	if content.preferred == nil {
		return archiveContent{}, errors.New("the image has no platform")
	}
	raw, err := index.RawManifest()
	if err != nil {
		return archiveContent{}, err
	}
	content.blobs = append(content.blobs, bytesBlob(root.Digest, raw))
	return content, nil
}
