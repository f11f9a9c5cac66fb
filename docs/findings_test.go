package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func pageOf(code string) string {
	return strings.ToLower(strings.ReplaceAll(code, "_", "-")) + ".md"
}

// The commands and the page link to a page by its code.
func TestFindings_EveryCodeHasAPageAndEveryPageACode(t *testing.T) {
	want := []string{"README.md"}
	for _, code := range reasonsOf(t, "FindingCode") {
		want = append(want, pageOf(code))
	}
	has, err := filepath.Glob("findings/*")
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]bool{}
	for _, path := range has {
		pages[filepath.Base(path)] = true
	}
	for _, page := range want {
		if !pages[page] {
			t.Errorf("there is no docs/findings/%s", page)
		}
		delete(pages, page)
	}
	for page := range pages {
		t.Errorf("docs/findings/%s is about no code", page)
	}
}

// All pages have the same headings.
func TestFindings_PagesAnswerTheSameQuestions(t *testing.T) {
	questions := []string{
		"What it means", "How Trivet knows", "What kube-apiserver does", "What is repaired automatically", "What to do",
	}
	for _, code := range reasonsOf(t, "FindingCode") {
		text := document(t, "findings/"+pageOf(code))
		if title, _, _ := strings.Cut(text, "\n"); title != "# "+code {
			t.Errorf("%s begins with %q, want %q", pageOf(code), title, "# "+code)
		}
		var asked []string
		for _, heading := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(text, -1) {
			asked = append(asked, heading[1])
		}
		if diff := cmp.Diff(questions, asked); diff != "" {
			t.Errorf("%s: headings (-want +got):\n%s", pageOf(code), diff)
		}
		for i, section := range strings.Split(text, "\n## ")[1:] {
			if _, answer, _ := strings.Cut(section, "\n"); len(strings.TrimSpace(answer)) < 40 {
				t.Errorf("%s answers %q with next to nothing", pageOf(code), questions[min(i, len(questions)-1)])
			}
		}
	}
}

func TestFindings_TableHasAllCodesInTheirOrder(t *testing.T) {
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| \\[`([A-Z_]+)`\\]\\(([-a-z]+\\.md)\\) \\|").FindAllStringSubmatch(document(t, "findings/README.md"), -1) {
		listed = append(listed, row[1])
		if want := pageOf(row[1]); row[2] != want {
			t.Errorf("%s links to %s, want %s", row[1], row[2], want)
		}
	}
	if diff := cmp.Diff(reasonsOf(t, "FindingCode"), listed); diff != "" {
		t.Errorf("codes (-api +docs):\n%s", diff)
	}
}

// The code in the name of an example finding is the page's.
func TestFindings_ExamplesAreOfTheirPage(t *testing.T) {
	example := regexp.MustCompile(`explain finding ([-a-z]+)\.`)
	for _, code := range reasonsOf(t, "FindingCode") {
		found := example.FindAllStringSubmatch(document(t, "findings/"+pageOf(code)), -1)
		for _, match := range found {
			if match[1]+".md" != pageOf(code) {
				t.Errorf("%s explains a finding of %s", pageOf(code), match[1])
			}
		}
	}
}

func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
