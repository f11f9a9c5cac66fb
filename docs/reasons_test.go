// Package docs_test compares what the documentation says with what the code has.
package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Every reason has a row, and every row a reason.
func TestReasons_AreTheOnesOfTheCode(t *testing.T) {
	text, err := os.ReadFile("reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		if explained[row[1]] {
			t.Errorf("%s has two rows", row[1])
		}
		explained[row[1]] = true
	}
	said := reasonsInGo(t)
	for reason, where := range reasonsInProtos(t) {
		said[reason] = where
	}
	if len(said) == 0 {
		t.Fatal("found no reason in the code")
	}
	for reason, where := range said {
		if !explained[reason] {
			t.Errorf("%s, in %s, has no row in reasons.md", reason, where)
		}
	}
	for reason := range explained {
		if said[reason] == "" {
			t.Errorf("reasons.md explains %s, which no code and no .proto file says", reason)
		}
	}
}

// reasonsInGo returns the constants of types called Reason that are written as reasons are, with
// their places.
func reasonsInGo(t *testing.T) map[string]string {
	t.Helper()
	shape := regexp.MustCompile(`^[A-Z][A-Z_]+$`)
	found := map[string]string{}
	eachFile(t, ".go", func(path string) {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || !isReason(spec.Type) {
				return true
			}
			for _, value := range spec.Values {
				if text, ok := literal(value); ok && shape.MatchString(text) {
					found[text] = set.Position(value.Pos()).String()
				}
			}
			return true
		})
	}, "services", "gateway", "internal")
	return found
}

// isReason says whether a type is called Reason, here or in another package.
func isReason(expression ast.Expr) bool {
	switch named := expression.(type) {
	case *ast.Ident:
		return named.Name == "Reason"
	case *ast.SelectorExpr:
		return named.Sel.Name == "Reason"
	default:
		return false
	}
}

func literal(expression ast.Expr) (string, bool) {
	basic, ok := expression.(*ast.BasicLit)
	if !ok || basic.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(basic.Value)
	return text, err == nil
}

// reasonsInProtos returns what the comments of .proto files promise: "ABORTED (SUPERSEDED)"
// promises SUPERSEDED.
func reasonsInProtos(t *testing.T) map[string]string {
	t.Helper()
	promise := regexp.MustCompile(`\b(?:INVALID_ARGUMENT|NOT_FOUND|ABORTED|UNAVAILABLE|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|INTERNAL) \(([^)]*)\)`)
	name := regexp.MustCompile(`\b[A-Z][A-Z_]{3,}\b`)
	found := map[string]string{}
	eachFile(t, ".proto", func(path string) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			return
		}
		text := regexp.MustCompile(`\n\s*//\s*`).ReplaceAllString(string(content), " ")
		for _, match := range promise.FindAllStringSubmatch(text, -1) {
			for _, reason := range name.FindAllString(match[1], -1) {
				found[reason] = path
			}
		}
	}, "proto")
	return found
}

// eachFile visits the files of some folders of the repository, tests and generated code left out.
func eachFile(t *testing.T, suffix string, visit func(path string), folders ...string) {
	t.Helper()
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join("..", folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, suffix) {
				return err
			}
			if !slices.ContainsFunc([]string{"_test.go", ".pb.go", ".pb.gw.go"}, func(s string) bool { return strings.HasSuffix(path, s) }) {
				visit(path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
