package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	layoutName    = "image" // of the OCI layout in the output directory
	digestName    = "digest"
	workName      = ".work"
	labelsPrefix  = "org.opencontainers.image."
	sourceURL     = "https://github.com/trivet-dev/trivet"
	licenses      = "Apache-2.0"
	maxCompressed = 60 << 20 // of one platform
)

// release says which state of the source an image is built from.
type release struct {
	version  string
	revision string // of the source; empty if it is not known
	created  time.Time
}

// labels returns what the image says about itself.
func (r release) labels() map[string]string {
	labels := map[string]string{
		labelsPrefix + "title":       "Trivet",
		labelsPrefix + "description": "Leases of nodes, allocations and EndpointSlices beside a Kubernetes control plane",
		labelsPrefix + "source":      sourceURL,
		labelsPrefix + "licenses":    licenses,
		labelsPrefix + "version":     r.version,
		labelsPrefix + "created":     r.created.UTC().Format(time.RFC3339),
	}
	if r.revision != "" {
		labels[labelsPrefix+"revision"] = r.revision
	}
	return labels
}

// builder builds the image of a release into a directory.
type builder struct {
	compiler
	release
	platforms []v1.Platform
	out       string
	limit     int64 // of the compressed size for one platform
	progress  io.Writer
}

// platformImage is the image for one platform.
type platformImage struct {
	platform v1.Platform
	image    v1.Image
	binaries string // directory of the binaries
}

func runBuild(ctx context.Context, args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("image build", flag.ContinueOnError)
	root := flags.String("root", filepath.Join("..", ".."), "the repository")
	out := flags.String("out", "", "directory of the image and the bills of materials")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "platforms of the image")
	var r release
	flags.StringVar(&r.version, "version", "devel", "version of the source")
	flags.StringVar(&r.revision, "revision", "", "commit of the source")
	flags.Func("created", "time of the commit, in seconds since 1970 (default 0)", func(text string) error {
		seconds, err := strconv.ParseInt(text, 10, 64)
		r.created = time.Unix(seconds, 0)
		return err
	})
	r.created = time.Unix(0, 0)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() > 0 {
		return usageError("--out is required, arguments are not taken")
	}
	b := &builder{
		compiler: compiler{goTool: "go", root: *root, version: r.version},
		release:  r,
		out:      *out,
		limit:    maxCompressed,
		progress: progress,
	}
	for name := range strings.SplitSeq(*platforms, ",") {
		platform, err := parsePlatform(name)
		if err != nil {
			return err
		}
		b.platforms = append(b.platforms, platform)
	}
	return b.build(ctx)
}

func parsePlatform(text string) (v1.Platform, error) {
	platform, err := v1.ParsePlatform(text)
	if err != nil {
		return v1.Platform{}, err
	}
	if platform.OS != "linux" || !slices.Contains([]string{"amd64", "arm64"}, platform.Architecture) || platform.Variant != "" {
		return v1.Platform{}, fmt.Errorf("platform %q is neither linux/amd64 nor linux/arm64", text)
	}
	return *platform, nil
}

// build compiles the commands and puts the image, its digest and a bill of materials for each
// platform into the output directory. A failed build leaves the previous image as it was.
func (b *builder) build(ctx context.Context) error {
	work := filepath.Join(b.out, workName)
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var images []platformImage
	for _, platform := range b.platforms {
		image, err := b.buildPlatform(ctx, platform, filepath.Join(work, fileName(platform)))
		if err != nil {
			return err
		}
		images = append(images, image)
	}
	index, err := indexOf(images, b.labels())
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := b.writeOutput(index, digest, images); err != nil {
		return err
	}
	fmt.Fprintf(b.progress, "%s\n%s is the image of version %s\n", digest, filepath.Join(b.out, layoutName), b.release.version)
	return nil
}

func (b *builder) buildPlatform(ctx context.Context, platform v1.Platform, binaries string) (platformImage, error) {
	fmt.Fprintf(b.progress, "%s: compiling …\n", platform.String())
	if err := b.compile(ctx, platform, binaries); err != nil {
		return platformImage{}, err
	}
	layers, err := trivetLayers(binaries)
	if err != nil {
		return platformImage{}, err
	}
	built, err := platformOf(slices.Concat(layers...))
	if err != nil {
		return platformImage{}, err
	}
	if !built.Equals(platform) {
		return platformImage{}, fmt.Errorf("binaries are built for %s instead of %s", built.String(), platform.String())
	}
	image, err := newImage(imageSpec{
		platform:    platform,
		user:        fmt.Sprintf("%d:%d", nonRoot, nonRoot),
		created:     b.created,
		labels:      b.labels(),
		layers:      layers,
		compression: smallZstd,
	})
	if err != nil {
		return platformImage{}, err
	}
	return platformImage{platform: platform, image: image, binaries: binaries}, b.checkSize(platform, image)
}

// checkSize prints the compressed sizes of layers and fails if an image is larger than allowed.
func (b *builder) checkSize(platform v1.Platform, image v1.Image) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	total := manifest.Config.Size
	for i, layer := range manifest.Layers {
		total += layer.Size
		fmt.Fprintf(b.progress, "  %8.2f MiB  %s\n", mebibytes(layer.Size), config.History[i].CreatedBy)
	}
	fmt.Fprintf(b.progress, "  %8.2f MiB  %s, compressed, of at most %.0f MiB\n", mebibytes(total), platform.String(), mebibytes(b.limit))
	if total > b.limit {
		return fmt.Errorf("the image for %s is %.2f MiB, which is more than %.0f MiB", platform.String(), mebibytes(total), mebibytes(b.limit))
	}
	return nil
}

// indexOf returns one image for several platforms.
func indexOf(images []platformImage, labels map[string]string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.image, Descriptor: v1.Descriptor{Platform: &i.platform}})
	}
	annotated, ok := mutate.Annotations(index, labels).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("an index with annotations is not an index")
	}
	return annotated, nil
}

// writeOutput replaces image, digest and bills of materials in the output directory.
func (b *builder) writeOutput(index v1.ImageIndex, digest v1.Hash, images []platformImage) error {
	fresh := filepath.Join(b.out, workName, layoutName)
	path, err := layout.Write(fresh, empty.Index)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{annotationRefName: b.release.version})
	if err := path.AppendIndex(index, named); err != nil {
		return err
	}
	files := map[string][]byte{digestName: []byte(digest.String() + "\n")}
	for _, i := range images {
		bill, err := billOfMaterials(i, b.release)
		if err != nil {
			return fmt.Errorf("bill of materials for %s: %w", i.platform.String(), err)
		}
		files["trivet_"+fileName(i.platform)+".cdx.json"] = bill
	}
	target := filepath.Join(b.out, layoutName)
	if err := errors.Join(os.RemoveAll(target), os.Rename(fresh, target)); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(b.out, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// runTree writes the files of the image for one platform into a directory.
func runTree(ctx context.Context, args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("image tree", flag.ContinueOnError)
	root := flags.String("root", filepath.Join("..", ".."), "the repository")
	out := flags.String("out", "", "directory that becomes the root of the image")
	platformName := flags.String("platform", "linux/amd64", "platform of the binaries")
	version := flags.String("version", "devel", "version of the source")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() > 0 {
		return usageError("--out is required, arguments are not taken")
	}
	platform, err := parsePlatform(*platformName)
	if err != nil {
		return err
	}
	return writeTrivetTree(ctx, compiler{goTool: "go", root: *root, version: *version}, platform, *out, progress)
}

func writeTrivetTree(ctx context.Context, c compiler, platform v1.Platform, out string, progress io.Writer) error {
	work, err := os.MkdirTemp("", "image-tree-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := c.compile(ctx, platform, work); err != nil {
		return err
	}
	layers, err := trivetLayers(work)
	if err != nil {
		return err
	}
	files, err := withParents(slices.Concat(layers...))
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s: %d files and directories in %s\n", platform.String(), len(files), out)
	return writeTree(out, files)
}

func fileName(platform v1.Platform) string { return platform.OS + "_" + platform.Architecture }

func mebibytes(size int64) float64 { return float64(size) / (1 << 20) }
