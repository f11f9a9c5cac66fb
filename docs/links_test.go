package docs_test

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Links between the documents lead to files and headings that exist.
func TestDocuments_LinkToWhatExists(t *testing.T) {
	for _, document := range documents(t) {
		for _, link := range links(t, document) {
			file, heading, _ := strings.Cut(link, "#")
			target := document
			if file != "" {
				target = path.Join(path.Dir(document), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", document, link, err)
			} else if heading != "" && !slices.Contains(headings(t, target), heading) {
				t.Errorf("%s links to %s: there is no such heading", document, link)
			}
		}
	}
}

// Each document can be reached from the list of documents.
func TestDocuments_AreAllReachableFromTheirList(t *testing.T) {
	reached, next := map[string]bool{}, []string{"README.md"}
	for len(next) > 0 {
		document := next[0]
		next = next[1:]
		if reached[document] {
			continue
		}
		reached[document] = true
		for _, link := range links(t, document) {
			file, _, _ := strings.Cut(link, "#")
			if target := path.Join(path.Dir(document), file); strings.HasSuffix(file, ".md") && !strings.HasPrefix(target, "..") {
				next = append(next, target)
			}
		}
	}
	for _, document := range documents(t) {
		if !strings.HasPrefix(document, "..") && !reached[document] {
			t.Errorf("no page that README.md leads to links to %s", document)
		}
	}
}

// Programs, manifests and rules name documents and headings that exist.
func TestDocuments_NamedElsewhereExist(t *testing.T) {
	mention := regexp.MustCompile(`\bdocs/([A-Za-z0-9/-]+\.md)(?:#([a-z0-9-]+))?`)
	named := 0
	for _, extension := range []string{".go", ".proto", ".yaml", ".txt", ".js", ".html"} {
		eachFile(t, extension, func(file string) {
			if strings.HasSuffix(file, ".pb.go") {
				return
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			for _, match := range mention.FindAllStringSubmatch(string(text), -1) {
				named++
				if _, err := os.Stat(match[1]); err != nil {
					t.Errorf("%s names docs/%s: %v", file, match[1], err)
				} else if match[2] != "" && !slices.Contains(headings(t, match[1]), match[2]) {
					t.Errorf("%s names docs/%s#%s: there is no such heading", file, match[1], match[2])
				}
			}
		}, "agent", "cmd", "deploy", "gateway", "internal", "proto", "services")
	}
	if named < 20 {
		t.Errorf("only %d mentions of documents were found", named)
	}
}

// documents are the paths of all documents, from this folder.
func documents(t *testing.T) []string {
	t.Helper()
	found := []string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md"}
	eachFile(t, ".md", func(file string) {
		found = append(found, strings.TrimPrefix(file, "../docs/"))
	}, "docs")
	return found
}

// links are the targets of a document's links within the repository.
func links(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	for _, match := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(document(t, name), -1) {
		if !strings.Contains(match[1], "://") && !strings.HasPrefix(match[1], "mailto:") {
			found = append(found, match[1])
		}
	}
	return found
}

// headings are the anchors of a document's headings, as GitHub makes them: lower case, spaces as
// hyphens, no other punctuation, and a number from the second heading of the same text on.
func headings(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	repeated := map[string]int{}
	isCode := false
	for line := range strings.Lines(document(t, name)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			isCode = !isCode
		}
		title, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if isCode || !strings.HasPrefix(line, "#") || !isHeading {
			continue
		}
		title = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(strings.TrimSpace(title), "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		repeated[anchor]++
		if again := repeated[anchor] - 1; again > 0 {
			anchor += fmt.Sprintf("-%d", again)
		}
		found = append(found, anchor)
	}
	return found
}
