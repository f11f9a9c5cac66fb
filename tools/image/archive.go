package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	ociLayout         = `{"imageLayoutVersion":"1.0.0"}`
	annotationRefName = "org.opencontainers.image.ref.name"
	// annotationImageName is the whole name of an image in an archive, as containerd reads it.
	annotationImageName = "io.containerd.image.name"
)

// parseTag parses the name of an image. A name without a tag is refused: it means latest, which a
// kubelet always pulls.
func parseTag(text string) (name.Tag, error) {
	tag, err := name.NewTag(text)
	if err != nil {
		return name.Tag{}, err
	}
	if !strings.HasSuffix(text, ":"+tag.TagStr()) {
		return name.Tag{}, fmt.Errorf("image name %q has no tag", text)
	}
	return tag, nil
}

// fullName returns the name as container runtimes write it, with registry and repository.
func fullName(tag name.Tag) string {
	return strings.Replace(tag.Name(), name.DefaultRegistry+"/", "docker.io/", 1)
}

// blob is a part of an image that is stored below its digest.
type blob struct {
	digest v1.Hash
	size   int64
	open   func() (io.ReadCloser, error)
}

func bytesBlob(digest v1.Hash, content []byte) blob {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	return blob{digest: digest, size: int64(len(content)), open: open}
}

func (b blob) path() string { return "blobs/" + b.digest.Algorithm + "/" + b.digest.Hex }

// imageBlobs returns layers, configuration and manifest of an image, in this order.
func imageBlobs(image v1.Image) ([]blob, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	var blobs []blob
	for _, layer := range layers {
		digest, digestErr := layer.Digest()
		size, sizeErr := layer.Size()
		if err := errors.Join(digestErr, sizeErr); err != nil {
			return nil, err
		}
		blobs = append(blobs, blob{digest: digest, size: size, open: layer.Compressed})
	}
	configDigest, configDigestErr := image.ConfigName()
	config, configErr := image.RawConfigFile()
	digest, digestErr := image.Digest()
	manifest, manifestErr := image.RawManifest()
	if err := errors.Join(configDigestErr, configErr, digestErr, manifestErr); err != nil {
		return nil, err
	}
	return append(blobs, bytesBlob(configDigest, config), bytesBlob(digest, manifest)), nil
}

// archiveContent is what an archive holds.
type archiveContent struct {
	root      v1.Descriptor // of the image, or of the index of several platforms
	blobs     []blob
	preferred v1.Image // what a reader gets that knows one platform only
}

// imageContent is the content of an archive with one image.
func imageContent(image v1.Image) (archiveContent, error) {
	root, err := partial.Descriptor(image)
	if err != nil {
		return archiveContent{}, err
	}
	blobs, err := imageBlobs(image)
	return archiveContent{root: *root, blobs: blobs, preferred: image}, err
}

// writeArchive writes an OCI archive that also has the manifest.json of `docker save`. containerd,
// Docker, kind and Podman import it. Equal contents make equal archives.
func writeArchive(w io.Writer, tag name.Tag, content archiveContent) error {
	root := content.root
	root.ArtifactType = "" // the library repeats the configuration's type here
	root.Annotations = map[string]string{
		annotationImageName: fullName(tag),
		annotationRefName:   tag.TagStr(),
	}
	index, err := json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests:     []v1.Descriptor{root},
	})
	if err != nil {
		return err
	}
	docker, err := dockerManifest(tag, content.preferred)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	for _, entry := range []struct {
		name    string
		content []byte
	}{{"oci-layout", []byte(ociLayout)}, {"index.json", index}, {"manifest.json", docker}} {
		if err := writeEntry(archive, entry.name, int64(len(entry.content)), bytes.NewReader(entry.content)); err != nil {
			return err
		}
	}
	written := map[v1.Hash]bool{}
	for _, b := range content.blobs {
		if written[b.digest] {
			continue
		}
		written[b.digest] = true
		if err := writeBlob(archive, b); err != nil {
			return fmt.Errorf("write %s: %w", b.digest, err)
		}
	}
	return archive.Close()
}

// dockerManifest returns manifest.json, which says where configuration and layers of an image are.
func dockerManifest(tag name.Tag, image v1.Image) ([]byte, error) {
	config, err := image.ConfigName()
	if err != nil {
		return nil, err
	}
	entry := tarball.Descriptor{Config: blob{digest: config}.path(), RepoTags: []string{tag.String()}}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return nil, err
		}
		entry.Layers = append(entry.Layers, blob{digest: digest}.path())
	}
	return json.Marshal(tarball.Manifest{entry})
}

func writeBlob(archive *tar.Writer, b blob) error {
	content, err := b.open()
	if err != nil {
		return err
	}
	defer content.Close()
	return writeEntry(archive, b.path(), b.size, content)
}

func writeEntry(archive *tar.Writer, name string, size int64, content io.Reader) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}
