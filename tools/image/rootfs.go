package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonRoot is the user and group of Trivet's own image; deploy/ and deploy/Dockerfile name it too.
const nonRoot = 65532

const (
	passwd = "root:x:0:0:root:/:/sbin/nologin\n" +
		"nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
	group = "root:x:0:\n" +
		"nonroot:x:65532:\n"
	rootsPath = "/etc/ssl/certs/ca-certificates.crt"
)

// file is one file, directory or symbolic link of an image. Its owner is root.
type file struct {
	path    string      // in the image, absolute
	mode    fs.FileMode // with fs.ModeDir for a directory, fs.ModeSymlink for a link
	link    string      // target of a symbolic link
	content []byte      // if source is empty
	source  string      // path on this machine
}

// baseFiles returns the files that every image has beside its binaries: the names of its users and
// a directory for temporary files.
func baseFiles() []file {
	return []file{
		{path: "/etc", mode: fs.ModeDir | 0o755},
		{path: "/etc/group", mode: 0o644, content: []byte(group)},
		{path: "/etc/passwd", mode: 0o644, content: []byte(passwd)},
		{path: "/tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}
}

// rootsFiles returns the certificates of the public authorities, where Go and OpenSSL look for
// them.
func rootsFiles() ([]file, error) {
	bundle, err := publicRoots()
	if err != nil {
		return nil, err
	}
	return []file{
		{path: "/etc/ssl", mode: fs.ModeDir | 0o755},
		{path: "/etc/ssl/certs", mode: fs.ModeDir | 0o755},
		{path: rootsPath, mode: 0o644, content: bundle},
	}, nil
}

// sourceFile returns the file that an argument SOURCE or SOURCE=PATH names. Without PATH the file
// is at the root of the image.
func sourceFile(argument string) (file, error) {
	source, target, hasTarget := strings.Cut(argument, "=")
	if !hasTarget {
		target = "/" + filepath.Base(source)
	}
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" {
		return file{}, fmt.Errorf("%s: the path in the image must be absolute and clean, not %q", source, target)
	}
	info, err := os.Stat(source)
	if err != nil {
		return file{}, err
	}
	if !info.Mode().IsRegular() {
		return file{}, fmt.Errorf("%s is not a regular file", source)
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return file{path: target, mode: mode, source: source}, nil
}

// withParents returns files and the directories above them, sorted by path. A path that is there
// twice is an error.
func withParents(files []file) ([]file, error) {
	byPath := map[string]file{}
	for _, f := range files {
		if _, exists := byPath[f.path]; exists {
			return nil, fmt.Errorf("%s is in the image twice", f.path)
		}
		byPath[f.path] = f
	}
	for _, f := range files {
		for dir := path.Dir(f.path); dir != "/"; dir = path.Dir(dir) {
			if parent, exists := byPath[dir]; !exists {
				byPath[dir] = file{path: dir, mode: fs.ModeDir | 0o755}
			} else if !parent.mode.IsDir() {
				return nil, fmt.Errorf("%s is in the image both as a file and as a directory", dir)
			}
		}
	}
	all := make([]file, 0, len(byPath))
	for _, f := range byPath {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return all, nil
}

// open returns the content and its size.
func (f file) open() (io.ReadCloser, int64, error) {
	if f.source == "" {
		return io.NopCloser(bytes.NewReader(f.content)), int64(len(f.content)), nil
	}
	opened, err := os.Open(f.source)
	if err != nil {
		return nil, 0, err
	}
	info, err := opened.Stat()
	if err != nil {
		opened.Close()
		return nil, 0, err
	}
	return opened, info.Size(), nil
}

// writeTar writes files as a tar stream that depends on their paths, modes and contents only: no
// time, user or group of this machine.
func writeTar(w io.Writer, files []file) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		if err := writeTarFile(archive, f); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	return archive.Close()
}

func writeTarFile(archive *tar.Writer, f file) error {
	header := &tar.Header{
		Name:    strings.TrimPrefix(f.path, "/"),
		Mode:    int64(f.mode.Perm()),
		ModTime: time.Unix(0, 0),
		Format:  tar.FormatUSTAR,
	}
	if f.mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	switch f.mode.Type() {
	case fs.ModeDir:
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		return archive.WriteHeader(header)
	case fs.ModeSymlink:
		header.Typeflag, header.Linkname = tar.TypeSymlink, f.link
		return archive.WriteHeader(header)
	}
	content, size, err := f.open()
	if err != nil {
		return err
	}
	defer content.Close()
	header.Typeflag, header.Size = tar.TypeReg, size
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, content)
	return err
}

// writeTree writes files below dir with the modes that they have in the image. It replaces files
// and links that exist.
func writeTree(dir string, files []file) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := writeTreeFile(filepath.Join(dir, filepath.FromSlash(f.path)), f); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	return nil
}

func writeTreeFile(target string, f file) error {
	if f.mode.IsDir() {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		return os.Chmod(target, f.mode) // whatever the umask is
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f.mode.Type() == fs.ModeSymlink {
		return os.Symlink(f.link, target)
	}
	content, _, err := f.open()
	if err != nil {
		return err
	}
	defer content.Close()
	written, err := os.Create(target)
	if err != nil {
		return err
	}
	if _, err := io.Copy(written, content); err != nil {
		written.Close()
		return err
	}
	if err := written.Close(); err != nil {
		return err
	}
	return os.Chmod(target, f.mode)
}

// rootsModule is the module that publicRoots reads. Its version in go.mod is the version of the
// bundle.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// publicRoots returns the public authorities of Mozilla's program as PEM, each with its name.
//
// They come from a module, not from this machine, so that equal sources make equal images. An
// authority whose trust Mozilla limits by date is left out: a PEM file cannot hold the limit.
func publicRoots() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		certificate, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, fmt.Errorf("parse an authority of %s: %w", rootsModule, err)
		}
		fmt.Fprintf(&out, "# %s\n", certificate.Subject)
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
