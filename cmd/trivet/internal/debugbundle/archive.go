package debugbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/identity"
)

// part is one file of the archive, or why it is missing.
type part struct {
	path string
	body []byte
	// cut says that the source had more. binary says that the body is no text, so that it is not
	// redacted: only profiles are.
	cut, binary bool
	err         error
}

// manifest says what is in an archive.
type manifest struct {
	Tool     string    `json:"tool"`
	Platform string    `json:"platform"`
	Begun    time.Time `json:"begun"`
	Written  time.Time `json:"written"`
	Files    []file    `json:"files"`
	Missing  []missing `json:"missing"`
}

type file struct {
	Path  string `json:"path"`
	Bytes int    `json:"bytes"`
	// Cut says that the source had more.
	Cut bool `json:"cut,omitempty"`
	// Redacted is how many values were replaced.
	Redacted int `json:"redacted,omitempty"`
}

type missing struct {
	Path  string `json:"path"`
	Cause string `json:"cause"`
}

var errFull = errors.New("the archive has --max-bytes already")

// writeArchive writes the parts, ordered by path and redacted, and then the manifest.
func writeArchive(out io.Writer, begun time.Time, parts []part, secrets *redactor, maxBytes int64) (manifest, error) {
	packed := gzip.NewWriter(out)
	archive := tar.NewWriter(packed)
	described := manifest{
		Tool: "trivet " + identity.Version(), Platform: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Begun: begun.UTC(), Written: time.Now().UTC(), Files: []file{}, Missing: []missing{},
	}
	slices.SortStableFunc(parts, func(a, b part) int { return strings.Compare(a.path, b.path) })
	left := maxBytes
	for _, p := range parts {
		redacted := 0
		if !p.binary {
			p.body, redacted = secrets.text(p.body)
		}
		if p.err == nil && int64(len(p.body)) > left {
			p.err = errFull
		}
		if p.err != nil {
			cause, _ := secrets.text([]byte(p.err.Error()))
			described.Missing = append(described.Missing, missing{Path: p.path, Cause: string(cause)})
			continue
		}
		left -= int64(len(p.body))
		if err := add(archive, p.path, p.body, described.Written); err != nil {
			return described, err
		}
		described.Files = append(described.Files, file{Path: p.path, Bytes: len(p.body), Cut: p.cut, Redacted: redacted})
	}
	body, err := json.MarshalIndent(described, "", "  ")
	if err == nil {
		err = add(archive, "manifest.json", append(body, '\n'), described.Written)
	}
	return described, errors.Join(err, archive.Close(), packed.Close())
}

func add(archive *tar.Writer, path string, body []byte, at time.Time) error {
	header := &tar.Header{Name: "trivet-debug/" + path, Mode: 0o600, Size: int64(len(body)), ModTime: at, Typeflag: tar.TypeReg}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(body)
	return err
}

// limited keeps the first bytes that are written to it.
type limited struct {
	bytes.Buffer

	limit int
	cut   bool
}

func (l *limited) Write(data []byte) (int, error) {
	free := max(l.limit-l.Len(), 0)
	if len(data) > free {
		l.cut = true
		_, _ = l.Buffer.Write(data[:free]) // never fails
		return len(data), nil
	}
	return l.Buffer.Write(data)
}
