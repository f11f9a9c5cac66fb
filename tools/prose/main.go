// Command prose makes the text inside source files readable for the prose linter, which reads
// comments only.
//
// For each Go and JavaScript file that git knows below a root it writes a text file that holds, on
// the same line numbers, the string literals of that file and the names that it declares, split
// into words. A finding of the linter in the text file therefore points at the line of the source.
//
//	prose --root . --out DIR
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

func main() {
	root := flag.String("root", ".", "The root of the repository.")
	out := flag.String("out", "", "The directory that the text files are written to.")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	list, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.go", "*.js").Output()
	if err != nil {
		return fmt.Errorf("list the files of %s: %w", root, err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if strings.HasSuffix(name, ".pb.go") || strings.HasSuffix(name, ".pb.gw.go") || strings.HasPrefix(name, "third_party/") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			return err
		}
		lines := javaScriptLines(string(source))
		if strings.HasSuffix(name, ".go") {
			if lines, err = goLines(source); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		target := filepath.Join(out, name+".txt")
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// goLines returns one entry for each line of a Go file: its string literals and its declared names.
func goLines(source []byte) ([]string, error) {
	lines := make([]string, strings.Count(string(source), "\n")+1)
	parsed := token.NewFileSet()
	tree, err := parser.ParseFile(parsed, "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	tags := map[int]bool{} // offsets of struct tags, which name stored fields and are not text
	ast.Inspect(tree, func(node ast.Node) bool {
		if field, ok := node.(*ast.Field); ok && field.Tag != nil {
			tags[parsed.Position(field.Tag.Pos()).Offset] = true
		}
		return true
	})

	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var tokens scanner.Scanner
	tokens.Init(file, source, nil, 0)
	for {
		pos, tok, text := tokens.Scan()
		if tok == token.EOF {
			break
		}
		if tok != token.STRING || tags[files.Position(pos).Offset] {
			continue
		}
		if value, err := strconv.Unquote(text); err == nil {
			for i, part := range strings.Split(value, "\n") {
				if at := files.Position(pos).Line - 1 + i; at < len(lines) {
					lines[at] += part + " . "
				}
			}
		}
	}

	declare := func(names ...*ast.Ident) {
		for _, name := range names {
			lines[parsed.Position(name.Pos()).Line-1] += words(name.Name) + " . "
		}
	}
	declare(tree.Name)
	ast.Inspect(tree, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.FuncDecl:
			declare(n.Name)
		case *ast.TypeSpec:
			declare(n.Name)
		case *ast.ValueSpec:
			declare(n.Names...)
		case *ast.Field:
			declare(n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, left := range n.Lhs {
					if name, ok := left.(*ast.Ident); ok {
						declare(name)
					}
				}
			}
		}
		return true
	})
	return lines, nil
}

var (
	quoted   = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|'(?:[^'\\\\]|\\\\.)*'|`(?:[^`\\\\]|\\\\.)*`")
	declared = regexp.MustCompile(`\b(?:const|let|class|function)\s+(\w+)`)
	comment  = regexp.MustCompile(`(^|\s)//.*$`)
	embedded = regexp.MustCompile(`\$\{[^}]*\}`)
)

// javaScriptLines returns one entry for each line: its literals and the names that it declares.
func javaScriptLines(source string) []string {
	lines := strings.Split(source, "\n")
	for i, line := range lines {
		line = comment.ReplaceAllString(line, "")
		var found []string
		for _, literal := range quoted.FindAllString(line, -1) {
			found = append(found, embedded.ReplaceAllString(literal[1:len(literal)-1], "…"))
		}
		for _, match := range declared.FindAllStringSubmatch(line, -1) {
			found = append(found, words(match[1]))
		}
		lines[i] = strings.Join(found, " . ")
	}
	return lines
}

// words splits a name at its capitals and underscores: "markUnknown" becomes "mark Unknown".
func words(name string) string {
	var split strings.Builder
	previous := ' '
	for _, r := range name {
		if r == '_' {
			r = ' '
		} else if unicode.IsUpper(r) && unicode.IsLower(previous) {
			split.WriteRune(' ')
		}
		split.WriteRune(r)
		previous = r
	}
	return split.String()
}
