package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each row of faults.md names tests that exist, says how they play the fault, and names the targets
// that run them.
func TestFaults_EachRowNamesATestThatExists(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(document(t, "faults.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| fault ") {
			continue
		}
		rows++
		if len(cells) != 5 {
			t.Errorf("%d cells, want 5: %s", len(cells), line)
			continue
		}
		checkTests(t, line, cells[2])
		for how := range strings.SplitSeq(strings.TrimSpace(cells[3]), ", ") {
			if !slices.Contains([]string{"black box", "bubble", "unit", "browser"}, how) {
				t.Errorf("the fault is played by %q, want black box, bubble, unit or browser: %s", how, line)
			}
		}
		for target := range strings.SplitSeq(strings.TrimSpace(cells[4]), ", ") {
			target = strings.TrimPrefix(strings.Trim(target, "`"), "make ")
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).Match(makefile) {
				t.Errorf("the Makefile has no target %q: %s", target, line)
			}
		}
		tests, belowTest := strings.Count(cells[2], ": Test"), strings.Count(cells[2], "`test/")
		if ran := strings.TrimSpace(cells[4]); ran == "`make test`" && belowTest > 0 || tests == belowTest && strings.Contains(ran, "`make test`") {
			t.Errorf("`make test` runs no test below test/: %s", line)
		}
	}
	if rows == 0 {
		t.Error("faults.md has no rows")
	}
}

// Each surface of security.md has tests.
func TestSecurity_EachSurfaceNamesATestThatExists(t *testing.T) {
	_, surfaces, _ := strings.Cut(document(t, "security.md"), "## Surfaces")
	surfaces, _, _ = strings.Cut(surfaces, "\n## ")
	rows := 0
	for line := range strings.Lines(surfaces) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| surface ") {
			continue
		}
		rows++
		checkTests(t, line, line)
	}
	if rows == 0 {
		t.Error("security.md has no surfaces")
	}
}

// checkTests checks that a cell of a row names tests, as `folder: Test`, and that all exist.
func checkTests(t *testing.T, row, cell string) {
	t.Helper()
	tests := regexp.MustCompile("`([^`:]+): (Test\\w+|Fuzz\\w+)`").FindAllStringSubmatch(cell, -1)
	if len(tests) == 0 {
		t.Errorf("no test: %s", row)
	}
	for _, test := range tests {
		if !hasTest(t, filepath.Join("..", test[1]), test[2]) {
			t.Errorf("%s has no %s", test[1], test[2])
		}
	}
}

func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "func "+name+"(") {
			return true
		}
	}
	return false
}
