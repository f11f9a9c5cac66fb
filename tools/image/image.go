package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageSpec says what an image is made of. Equal specs and files make equal images.
type imageSpec struct {
	platform    v1.Platform
	user        string // empty is root
	entrypoint  []string
	created     time.Time
	labels      map[string]string // in the configuration, and as annotations of the manifest
	layers      [][]file
	compression int // a level of compress/gzip
}

// newImage returns the image in OCI format. It reads all files.
func newImage(spec imageSpec) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: spec.created.UTC()}
	for _, files := range spec.layers {
		layer, err := newLayer(files, spec.compression)
		if err != nil {
			return nil, err
		}
		history := v1.History{Created: created, CreatedBy: "COPY " + mainPath(files) + " /"}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: history, MediaType: types.OCILayer})
		if err != nil {
			return nil, fmt.Errorf("append the layer of %s: %w", mainPath(files), err)
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
	return mutate.Annotations(image, spec.labels).(v1.Image), nil
}

// newLayer returns a compressed layer with files and the directories above them.
func newLayer(files []file, compression int) (v1.Layer, error) {
	files, err := withParents(files)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(writeTar(writer, files)) }()
		return reader, nil
	}
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(compression), tarball.WithCompressedCaching)
}

// mainPath is the path that stands for a layer in the history of an image.
func mainPath(files []file) string {
	for _, f := range files {
		if !f.mode.IsDir() {
			return f.path
		}
	}
	return "/"
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
	defer binary.Close()
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
