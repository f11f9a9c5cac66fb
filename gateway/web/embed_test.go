package web_test

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/test/lab/webtest"
)

func TestPage_FilesAreSafe(t *testing.T) { webtest.CheckFiles(t, web.Files()) }

// Only the page of `trivet-lab up --demo` has routes there.
func TestPage_AsksTheLaboratoryForNothing(t *testing.T) {
	for name, content := range webtest.ReadFiles(t, web.Files()) {
		if strings.Contains(content, "/demo/") {
			t.Errorf("%s asks for /demo/", name)
		}
	}
}

// Without a bundler only this test detects a missing or unused file.
func TestPage_EveryReferenceHasItsFile(t *testing.T) {
	files := webtest.ReadFiles(t, web.Files())
	referenced := map[string]bool{"index.html": true}
	absolute := regexp.MustCompile(`(?:src=|href=|SharedWorker\()"/(assets/[\w.-]+)`)
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
