package docs_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The links of evidence are in the registry in the order in which the code returns them.
func TestReasons_HaveAllEvidenceInItsOrder(t *testing.T) {
	for enum, path := range map[string]string{
		"NodeEvidenceCode":     "../services/leasesvc/internal/explain/explain.go",
		"EndpointEvidenceCode": "../services/slicesvc/internal/explain/explain.go",
		"FindingEvidenceCode":  "../services/bootstrapsvc/internal/allocation/finding.go",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		var codes []string
		for _, constant := range constantsOf(file) {
			if strings.HasPrefix(constant.name, "Code") || constant.typeName == "EvidenceCode" {
				codes = append(codes, constant.value)
			}
		}
		if diff := cmp.Diff(codes, reasonsOf(t, enum)); diff != "" {
			t.Errorf("%s (-%s +registry):\n%s", enum, path, diff)
		}
	}
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
