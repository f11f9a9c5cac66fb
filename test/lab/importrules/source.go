package importrules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// source is one hand-written Go file.
type source struct {
	path string // from the root, with slashes
	test bool
	file *ast.File
	fset *token.FileSet
	text []string // its lines
}

// folder is the file's folder, from the root.
func (s source) folder() string { return path.Dir(s.path) }

// alone reports whether a comment has its lines to itself.
func (s source) alone(comment *ast.Comment) bool {
	return strings.HasPrefix(strings.TrimSpace(s.text[s.fset.Position(comment.Pos()).Line-1]), "//")
}

func (s source) at(node ast.Node) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(node.Pos()).Line)
}

// skipped folders hold no code of the root module, or generated code.
func skipped(rel string, entry fs.DirEntry) bool {
	name := entry.Name()
	return name == "testdata" || (strings.HasPrefix(name, ".") && rel != ".") || rel == "third_party"
}

// load parses every hand-written Go file below root, ordered by path.
func load(root string) ([]source, error) {
	var sources []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			if skipped(rel, entry) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, ".pb.go") || strings.HasSuffix(rel, ".pb.gw.go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			return err
		}
		sources = append(sources, source{
			path: rel, test: strings.HasSuffix(rel, "_test.go"), file: file, fset: fset, text: strings.Split(string(text), "\n"),
		})
		return nil
	})
	return sources, err
}
