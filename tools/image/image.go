package main

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	ggcrcompression "github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// imageSpec says what an image is made of. Equal specs and files make equal images.
type imageSpec struct {
	platform    v1.Platform
	user        string // empty is root
	entrypoint  []string
	created     time.Time
	labels      map[string]string // in the configuration, and as annotations of the manifest
	layers      [][]file
	compression compression
}

// compression says how a layer is compressed.
type compression struct {
	mediaType types.MediaType
	writer    func(io.Writer) (io.WriteCloser, error)
}

// quickGzip is for archives that stay on this machine. Everything reads it.
var quickGzip = compression{types.OCILayer, func(w io.Writer) (io.WriteCloser, error) {
	return gzip.NewWriterLevel(w, gzip.BestSpeed)
}}

// zstdWindow is how far back zstd finds what repeats. Go binaries of one repository repeat each
// other, so it spans the larger of them. A reader needs as much memory while it unpacks the layer.
const zstdWindow = 64 << 20

// smallZstd is for images that are shipped. containerd 1.5, Docker 23 and later versions read it.
var smallZstd = compression{types.OCILayerZStd, func(w io.Writer) (io.WriteCloser, error) {
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(zstdWindow), zstd.WithEncoderConcurrency(1))
}}

// newImage returns the image in OCI format. It reads all files.
func newImage(spec imageSpec) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: spec.created.UTC()}
	for _, files := range spec.layers {
		layer, err := newLayer(files, spec.compression)
		if err != nil {
			return nil, err
		}
		history := v1.History{Created: created, CreatedBy: "COPY " + filePaths(files) + " /"}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: history, MediaType: spec.compression.mediaType})
		if err != nil {
			return nil, fmt.Errorf("append the layer of %s: %w", filePaths(files), err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = spec.platform.OS, spec.platform.Architecture, spec.platform.Variant
	config.Created = created
	config.Config = v1.Config{
		User:       spec.user,
		Entrypoint: spec.entrypoint,
		Env:        []string{"PATH=/"},
		WorkingDir: "/",
		Labels:     spec.labels,
	}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return nil, fmt.Errorf("set the configuration: %w", err)
	}
	annotated, ok := mutate.Annotations(image, spec.labels).(v1.Image)
	if !ok {
		return nil, errors.New("an image with annotations is not an image")
	}
	return annotated, nil
}

// newLayer returns a compressed layer with files and the directories above them.
func newLayer(files []file, c compression) (v1.Layer, error) {
	files, err := withParents(files)
	if err != nil {
		return nil, err
	}
	var compressed bytes.Buffer
	writer, err := c.writer(&compressed)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(writeTar(writer, files), writer.Close()); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(compressed.Bytes())), nil }
	options := []tarball.LayerOption{tarball.WithMediaType(c.mediaType)}
	if c.mediaType == types.OCILayerZStd {
		options = append(options, tarball.WithCompression(ggcrcompression.ZStd))
	}
	return tarball.LayerFromOpener(open, options...)
}

// filePaths names the files of a layer, without directories.
func filePaths(files []file) string {
	var paths []string
	for _, f := range files {
		if !f.mode.IsDir() {
			paths = append(paths, f.path)
		}
	}
	return strings.Join(paths, " ")
}

// platformOf returns the platform that binaries are built for. It refuses binaries of several
// platforms, and binaries that need a dynamic loader, because the image has none. Files that are
// not ELF binaries run nowhere and say nothing.
func platformOf(files []file) (v1.Platform, error) {
	var platform v1.Platform
	for _, f := range files {
		if f.source == "" {
			continue
		}
		architecture, err := architectureOf(f.source)
		if err != nil {
			return v1.Platform{}, fmt.Errorf("%s: %w", f.source, err)
		}
		if architecture == "" {
			continue
		}
		if platform.Architecture != "" && platform.Architecture != architecture {
			return v1.Platform{}, fmt.Errorf("%s is built for %s, other binaries for %s", f.source, architecture, platform.Architecture)
		}
		platform = v1.Platform{OS: "linux", Architecture: architecture}
	}
	if platform.Architecture == "" {
		return v1.Platform{}, errors.New("none of the files is a Linux binary")
	}
	return platform, nil
}

// architectureOf returns GOARCH of a static binary, and nothing for a file that is not ELF.
func architectureOf(source string) (string, error) {
	binary, err := elf.Open(source)
	var notELF *elf.FormatError
	if errors.As(err, &notELF) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = binary.Close() }()
	if slices.ContainsFunc(binary.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return "", errors.New("needs a dynamic loader, which the image does not have: build it with CGO_ENABLED=0")
	}
	switch binary.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("machine %v is neither amd64 nor arm64", binary.Machine)
}

// entrypointOf returns the command that an image starts by default: the given one, or else the only
// executable.
func entrypointOf(given string, files []file) ([]string, error) {
	var executables []string
	for _, f := range files {
		if f.mode&0o111 != 0 {
			executables = append(executables, f.path)
		}
	}
	switch {
	case given == "" && len(executables) == 1:
		return executables, nil
	case given == "":
		return nil, nil
	case !slices.Contains(executables, path.Clean(given)):
		return nil, fmt.Errorf("entrypoint %s is none of the executables %v", given, executables)
	}
	return []string{path.Clean(given)}, nil
}
