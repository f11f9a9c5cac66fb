package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The table of evidence has the codes of the code, in their order.
func TestReasons_HaveAllEvidenceInItsOrder(t *testing.T) {
	text, err := os.ReadFile("reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Evidence of node health\n")
	if !found {
		t.Fatal("reasons.md has no such section")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| \\d+ \\| `([A-Z_]+)` \\|").FindAllStringSubmatch(section, -1) {
		listed = append(listed, row[1])
	}
	if diff := cmp.Diff(codesOfEvidence(t), listed); diff != "" {
		t.Errorf("codes (-code +docs):\n%s", diff)
	}
}

func codesOfEvidence(t *testing.T) []string {
	t.Helper()
	path := filepath.Join("..", "services", "leasesvc", "internal", "explain", "explain.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Code") {
			return true
		}
		if code, ok := literal(spec.Values[0]); ok {
			codes = append(codes, code)
		}
		return true
	})
	if len(codes) == 0 {
		t.Fatal("found no code of evidence")
	}
	return codes
}

// Every test that node-health.md names exists.
func TestNodeHealth_NamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("node-health.md")
	if err != nil {
		t.Fatal(err)
	}
	exist := map[string]bool{}
	eachTest(t, filepath.Join("..", "services", "leasesvc"), func(name string) { exist[name] = true })
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) == 0 {
		t.Fatal("node-health.md names no test")
	}
	for _, name := range named {
		if !exist[name[1]] {
			t.Errorf("there is no %s", name[1])
		}
	}
}

func eachTest(t *testing.T, folder string, visit func(name string)) {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range declared.FindAllSubmatch(source, -1) {
			visit(string(found[1]))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
