package httpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// page is the static page in memory. It does not change.
type page struct {
	index  file
	assets map[string]file
}

type file struct {
	content     []byte
	contentType string
	// etag lets a browser keep its copy until a build changes the file.
	etag string
}

func loadPage(files fs.FS) (*page, error) {
	index, err := loadFile(files, "index.html")
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(files, "assets")
	if err != nil {
		return nil, fmt.Errorf("read the page: %w", err)
	}
	p := &page{index: index, assets: map[string]file{}}
	for _, entry := range entries {
		if p.assets[entry.Name()], err = loadFile(files, path.Join("assets", entry.Name())); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func loadFile(files fs.FS, name string) (file, error) {
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return file{}, fmt.Errorf("read the page: %w", err)
	}
	contentType, err := contentTypeOf(name)
	if err != nil {
		return file{}, err
	}
	sum := sha256.Sum256(content)
	return file{content: content, contentType: contentType, etag: `"` + hex.EncodeToString(sum[:8]) + `"`}, nil
}

// contentTypeOf does not use the tables of the operating system, which differ, and does not guess.
func contentTypeOf(name string) (string, error) {
	switch extension := path.Ext(name); extension {
	case ".html":
		return "text/html; charset=utf-8", nil
	case ".css":
		return "text/css; charset=utf-8", nil
	case ".js":
		return "text/javascript; charset=utf-8", nil
	case ".svg":
		return "image/svg+xml", nil
	default:
		return "", fmt.Errorf("page file %q: no content type is known for %q", name, extension)
	}
}

func (p *page) serveIndex(w http.ResponseWriter, r *http.Request) { p.index.serve(w, r) }

func (p *page) serveAsset(w http.ResponseWriter, r *http.Request) {
	asset, ok := p.assets[r.PathValue("name")]
	if !ok {
		writeError(w, r, http.StatusNotFound)
		return
	}
	asset.serve(w, r)
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", f.contentType)
	w.Header().Set("Cache-Control", "no-cache") // cached, but revalidated
	w.Header().Set("ETag", f.etag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
}
