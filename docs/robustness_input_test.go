package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that robustness-input.md names exists, and every row of requests names one.
func TestRobustnessInput_NamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("robustness-input.md")
	if err != nil {
		t.Fatal(err)
	}
	exist := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, folder := range []string{"cmd", "gateway", "internal", "services", "test"} {
		err := filepath.WalkDir(filepath.Join("..", folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, found := range declared.FindAllSubmatch(source, -1) {
				exist[string(found[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, requests, _ := strings.Cut(string(text), "## Requests")
	requests, _, _ = strings.Cut(requests, "\n## ")
	rows := 0
	for line := range strings.Lines(requests) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| input ") {
			continue
		}
		rows++
		named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("no test holds %s", line)
		}
		for _, name := range named {
			if !exist[name[1]] {
				t.Errorf("there is no %s", name[1])
			}
		}
	}
	if rows != 12 {
		t.Errorf("there are %d rows of requests, want 12", rows)
	}
}
