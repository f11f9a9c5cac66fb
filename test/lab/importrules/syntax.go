package importrules

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// usage forbids naming something of a standard package.
type usage struct {
	from    string
	except  string // file paths where it is allowed
	names   []string
	because string
}

var usages = []usage{
	{
		from:    domains,
		names:   []string{"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.Sleep", "time.Tick", "time.NewTimer", "time.NewTicker", "monotonic.StartClock"},
		because: "time is a parameter of a domain package, so that tests and replays choose it",
	},
	{
		from: `.`, except: `^((test/lab/)?cmd/\w[-\w]*/main\.go|test/lab/testkit/.*|tools/.*|bench/.*)$`,
		names:   []string{"os.Exit", "os.Args", "log.Fatal", "log.Fatalf", "log.Fatalln"},
		because: "only main decides that a process ends, so that deferred work is done and tests can run the rest",
	},
}

func checkUsages(s source) []string {
	if s.test {
		return nil
	}
	var breaches []string
	for _, u := range usages {
		if !regexp.MustCompile(u.from).MatchString(s.path) ||
			(u.except != "" && regexp.MustCompile(u.except).MatchString(s.path)) {
			continue
		}
		ast.Inspect(s.file, func(node ast.Node) bool {
			if name, ok := qualified(node); ok && slices.Contains(u.names, name) {
				breaches = append(breaches, s.at(node)+": "+name+": "+u.because)
			}
			return true
		})
	}
	return breaches
}

func qualified(node ast.Node) (string, bool) {
	selector, ok := node.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	pkg, ok := selector.X.(*ast.Ident)
	if !ok || pkg.Obj != nil { // a local variable hides the package
		return "", false
	}
	return pkg.Name + "." + selector.Sel.Name, true
}

// checkLoops finds loops of processes that nothing would report as stalled.
func checkLoops(s source) []string {
	if s.test {
		return nil
	}
	var breaches []string
	check := func(literal *ast.CompositeLit) {
		limited := slices.ContainsFunc(literal.Elts, func(element ast.Expr) bool {
			field, ok := element.(*ast.KeyValueExpr)
			if !ok {
				return true // an unkeyed literal has all fields
			}
			key, ok := field.Key.(*ast.Ident)
			return ok && key.Name == "Stall"
		})
		if !limited && len(literal.Elts) > 0 {
			breaches = append(breaches, s.at(literal)+": loop.Loop: a loop without Stall hangs without a report")
		}
	}
	ast.Inspect(s.file, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if name, _ := qualified(literal.Type); name == "loop.Loop" {
			check(literal)
		}
		if list, ok := literal.Type.(*ast.ArrayType); ok {
			if name, _ := qualified(list.Elt); name == "loop.Loop" {
				for _, element := range literal.Elts {
					if elided, ok := element.(*ast.CompositeLit); ok && elided.Type == nil {
						check(elided)
					}
				}
			}
		}
		return true
	})
	return breaches
}

func checkInits(s source) []string {
	var breaches []string
	for _, declaration := range s.file.Decls {
		if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			breaches = append(breaches, s.at(f)+": init: work at import time surprises every importer")
		}
	}
	return breaches
}

func checkSuppressions(s source) []string {
	var breaches []string
	for _, group := range s.file.Comments {
		for _, comment := range group.List {
			if strings.HasPrefix(comment.Text, "//nolint") {
				breaches = append(breaches, s.at(comment)+": nolint: exceptions stand in .golangci.yml, with their reasons")
			}
		}
	}
	return breaches
}

// maxCommentColumns is the longest line of a comment, with four columns for a tab.
const maxCommentColumns = 100

// checkComments finds comment lines that are too long. A line without a blank, such as a URL,
// cannot be wrapped.
func checkComments(s source) []string {
	var breaches []string
	for _, group := range s.file.Comments {
		for _, comment := range group.List {
			position := s.fset.Position(comment.Pos())
			if !strings.HasPrefix(comment.Text, "// ") || !s.alone(comment) {
				continue
			}
			columns := 4*(position.Column-1) + utf8.RuneCountInString(comment.Text) // gofmt indents by tabs
			if columns > maxCommentColumns && strings.Contains(strings.TrimPrefix(comment.Text, "// "), " ") {
				breaches = append(breaches, s.at(comment)+": comment of "+strconv.Itoa(columns)+" columns: comments wrap at 100")
			}
		}
	}
	return breaches
}

var vagueNames = regexp.MustCompile(`^(utils?|common|helpers?|managers?|misc|base|shared|lib)$`)

// checkPackages checks the name and the package comment of each package.
func checkPackages(sources []source) []string {
	documented := map[string]bool{}
	first := map[string]source{}
	var folders []string
	for _, s := range sources {
		if s.test {
			continue
		}
		folder := s.folder()
		if _, seen := first[folder]; !seen {
			first[folder] = s
			folders = append(folders, folder)
		}
		if s.file.Doc != nil && introduces(s.file, folder) {
			documented[folder] = true
		}
	}
	var breaches []string
	for _, folder := range folders {
		if vagueNames.MatchString(path.Base(folder)) {
			breaches = append(breaches, folder+": name a package after its domain")
		}
		if !documented[folder] {
			breaches = append(breaches, folder+": the package has no package comment")
		}
	}
	return breaches
}

// introduces says whether a file's package comment begins as godoc expects.
func introduces(file *ast.File, folder string) bool {
	text := file.Doc.Text()
	if file.Name.Name == "main" {
		return strings.HasPrefix(text, "Command "+path.Base(folder)+" ")
	}
	return strings.HasPrefix(text, "Package "+strings.TrimSuffix(file.Name.Name, "_test")+" ")
}
