package webtest

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
)

// ReadFiles returns all files of a page by name.
func ReadFiles(t testing.TB, files fs.FS) map[string]string {
	t.Helper()
	contents := map[string]string{}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		contents[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatalf("read the page: %v", err)
	}
	return contents
}

var (
	parsers = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\b|new Function|javascript:`)
	inline  = regexp.MustCompile(`(?i)<script(>| [^>]*[^c]>[^<])|<style|\son[a-z]+=|\sstyle=`)
	foreign = regexp.MustCompile(`(?i)(src|href|url|from|import|fetch)\s*[=(]?\s*["'(]?\s*(https?:)?//`)
)

// CheckFiles fails for a script that parses HTML: values come from replicas, the id of a replica
// may be <script>, and it is text unless a script parses it. It also fails for inline code and for
// references to other servers, which the Content-Security-Policy refuses.
func CheckFiles(t testing.TB, files fs.FS) {
	t.Helper()
	scripts := 0
	for name, content := range ReadFiles(t, files) {
		if path.Ext(name) == ".js" {
			scripts++
			if found := parsers.FindString(content); found != "" {
				t.Errorf("%s uses %s, which parses values as HTML", name, found)
			}
		}
		if found := inline.FindString(content); found != "" && path.Ext(name) == ".html" {
			t.Errorf("%s has %q inline", name, found)
		}
		if found := foreign.FindString(strings.ReplaceAll(content, "http://www.w3.org/2000/svg", "")); found != "" {
			t.Errorf("%s refers to another server: %q", name, found)
		}
	}
	if scripts == 0 {
		t.Error("the page has no script")
	}
}
