package web_test

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/gateway/web"
)

// read returns all files of the page by name.
func read(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(web.Files(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(web.Files(), name)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatalf("read the page: %v", err)
	}
	return files
}

// Values come from replicas, and the id of a replica may be <script>. They are text unless a script
// parses HTML.
func TestPage_NeverParsesHTML(t *testing.T) {
	parsers := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\b|new Function|javascript:`)
	scripts := 0
	for name, content := range read(t) {
		if path.Ext(name) != ".js" {
			continue
		}
		scripts++
		if found := parsers.FindString(content); found != "" {
			t.Errorf("%s uses %s, which parses values as HTML", name, found)
		}
	}
	if scripts == 0 {
		t.Error("the page has no script")
	}
}

// The Content-Security-Policy refuses inline code and other servers.
func TestPage_KeepsItsOwnSecurityPolicy(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<script(>| [^>]*[^c]>[^<])|<style|\son[a-z]+=|\sstyle=`)
	foreign := regexp.MustCompile(`(?i)(src|href|url|from|import|fetch)\s*[=(]?\s*["'(]?\s*(https?:)?//`)
	for name, content := range read(t) {
		if found := inline.FindString(content); found != "" && path.Ext(name) == ".html" {
			t.Errorf("%s has %q inline", name, found)
		}
		if found := foreign.FindString(strings.ReplaceAll(content, "http://www.w3.org/2000/svg", "")); found != "" {
			t.Errorf("%s refers to another server: %q", name, found)
		}
	}
}

// Without a bundler only this test detects a missing or unused file.
func TestPage_EveryReferenceHasItsFile(t *testing.T) {
	files := read(t)
	referenced := map[string]bool{"index.html": true}
	absolute := regexp.MustCompile(`(?:src=|href=|href = |SharedWorker\()"/(assets/[\w.-]+)`)
	relative := regexp.MustCompile(`(?:from|import)[ (]"\./([\w.-]+)"`)
	for name, content := range files {
		for _, match := range absolute.FindAllStringSubmatch(content, -1) {
			check(t, files, referenced, name, match[1])
		}
		for _, match := range relative.FindAllStringSubmatch(content, -1) {
			check(t, files, referenced, name, path.Join(path.Dir(name), match[1]))
		}
	}
	for name := range files {
		if !referenced[name] {
			t.Errorf("no file loads %s", name)
		}
	}
}

func check(t *testing.T, files map[string]string, referenced map[string]bool, from, to string) {
	t.Helper()
	referenced[to] = true
	if _, ok := files[to]; !ok {
		t.Errorf("%s refers to %s, which does not exist", from, to)
	}
}
