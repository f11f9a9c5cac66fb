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

	"google.golang.org/genproto/googleapis/rpc/code"
)

// reasonFolders are the folders whose code sends the reasons of an enum.
var reasonFolders = map[string][]string{
	"ErrorReason":          {"services", "gateway", "internal"},
	"LeaseWriteReason":     {"services/leasesvc"},
	"BaselineChangeReason": {"services/bootstrapsvc"},
	"RepairChangeReason":   {"services/bootstrapsvc"},
	"SliceChangeReason":    {"services/slicesvc"},
	"SyncTrigger":          {"services/slicesvc"},
	"EvictionReason":       {"services/leasesvc"},
	"NodeHealthReason":     {"services/leasesvc"},
	"ConditionReason":      {"services"},
	"PlanIncompleteReason": {"services"},
	"ConditionType":        {"services"},
	"ProblemCode":          {"services", "gateway", "internal"},
	"NodeEvidenceCode":     {"services/leasesvc"},
	"NodeWriteStep":        {"services/leasesvc"},
	"EndpointEvidenceCode": {"services/slicesvc"},
	"FindingEvidenceCode":  {"services/bootstrapsvc"},
	"FindingCode":          {"services/bootstrapsvc"},
	"DifferenceReason":     {"services"},
}

// Every reason of the registry is a string literal of the code that sends it. Metrics and names of
// resources have reasons in lower case, with hyphens.
func TestReasons_OfTheRegistryAreUsed(t *testing.T) {
	for _, enum := range registry() {
		folders := reasonFolders[enum.name]
		if folders == nil {
			t.Errorf("reasonFolders names no code that sends the reasons of %s", enum.name)
			continue
		}
		used := usedStrings(t, folders)
		for _, r := range enum.reasons {
			if r.text == r.GetCode().String() {
				continue // package rpcserver makes it from the code
			}
			if !used[upperSnake(r.text)] {
				t.Errorf("%s: no code of %v sends %s", enum.name, folders, r.text)
			}
		}
	}
}

// usedStrings returns all string literals of some folders. The constants of package rpcerror, which
// all services share, count where they are used.
func usedStrings(t *testing.T, folders []string) map[string]bool {
	t.Helper()
	shared := map[string]string{}
	eachGoFile(t, func(_ string, file *ast.File) {
		for _, constant := range constantsOf(file) {
			shared["rpcerror."+constant.name] = constant.value
		}
	}, "internal/rpcerror")
	used := map[string]bool{}
	eachGoFile(t, func(_ string, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.ValueSpec:
				return file.Name.Name != "rpcerror"
			case *ast.BasicLit:
				if text, ok := literal(node); ok {
					used[upperSnake(text)] = true
				}
			case *ast.SelectorExpr:
				used[shared[nameOf(node)]] = true
			case *ast.Ident:
				if file.Name.Name == "rpcerror" {
					used[shared["rpcerror."+node.Name]] = true
				}
			}
			return true
		})
	}, folders...)
	return used
}

func upperSnake(text string) string { return strings.ToUpper(strings.ReplaceAll(text, "-", "_")) }

// Every constant of a type whose name ends with Reason, Trigger, EvidenceCode or ProblemCode is in
// the registry, if it is written as reasons are, and every constant whose name begins with reason;
// every rpcerror.Reason is an ErrorReason. A string that is given to a field Reason, Code or
// Trigger is in the registry, too.
func TestReasons_OfTheCodeAreInTheRegistry(t *testing.T) {
	shape := regexp.MustCompile(`^[A-Z][A-Z_]+$`)
	registered := regexp.MustCompile(`(Reason|Trigger|EvidenceCode|ProblemCode)$`)
	all, errors := map[string]bool{}, map[string]bool{}
	for _, enum := range registry() {
		for _, r := range enum.reasons {
			all[r.text] = true
			errors[r.text] = errors[r.text] || enum.name == "ErrorReason"
		}
	}
	found := 0
	eachGoFile(t, func(path string, file *ast.File) {
		for _, constant := range constantsOf(file) {
			known := all
			if constant.typeName == "rpcerror.Reason" {
				known = errors
			} else if !registered.MatchString(constant.typeName) && !strings.HasPrefix(constant.name, "reason") {
				continue
			}
			if !shape.MatchString(constant.value) {
				continue
			}
			found++
			if !known[constant.value] {
				t.Errorf("%s: the registry has no %s, the value of %s", path, constant.value, constant.name)
			}
		}
		ast.Inspect(file, func(node ast.Node) bool {
			pair, ok := node.(*ast.KeyValueExpr)
			if !ok || !slices.Contains([]string{"Reason", "Code", "Trigger"}, nameOf(pair.Key)) {
				return true
			}
			if text, ok := literal(pair.Value); ok && shape.MatchString(text) && strings.Contains(text, "_") && !all[text] {
				t.Errorf("%s: the registry has no %s", path, text)
			}
			return true
		})
	}, "services", "gateway", "internal", "agent", "cmd")
	if found == 0 {
		t.Fatal("found no reason in the code")
	}
}

// The code of an error is the one that the registry gives to its reason.
func TestReasons_ErrorsHaveTheCodeOfTheRegistry(t *testing.T) {
	want := errorCodes(t)
	shared := map[string]string{}
	eachGoFile(t, func(_ string, file *ast.File) {
		for _, constant := range constantsOf(file) {
			shared["rpcerror."+constant.name] = constant.value
		}
	}, "internal/rpcerror")
	packages := map[string]map[string]string{}
	eachGoFile(t, func(path string, file *ast.File) {
		folder := filepath.Dir(path)
		if packages[folder] == nil {
			packages[folder] = map[string]string{}
		}
		for _, constant := range constantsOf(file) {
			packages[folder][constant.name] = constant.value
		}
	}, "services", "gateway", "internal")

	compared := 0
	eachGoFile(t, func(path string, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) < 3 || nameOf(call.Fun) != "rpcerror.New" && (nameOf(call.Fun) != "New" || file.Name.Name != "rpcerror") {
				return true
			}
			name, reason := strings.TrimPrefix(nameOf(call.Args[0]), "codes."), nameOf(call.Args[1])
			text := shared[reason]
			if text == "" {
				text = packages[filepath.Dir(path)][reason]
			}
			if got, ok := codeNames[name]; ok && text != "" {
				compared++
				if got != want[text] {
					t.Errorf("%s: an error %s with the reason %s, whose code is %s", path, got, text, want[text])
				}
			}
			return true
		})
	}, "services", "gateway", "internal")
	if compared == 0 {
		t.Fatal("found no error")
	}
}

// codeNames are the names of gRPC codes in the documentation, by their names in Go.
var codeNames = map[string]string{
	"Canceled": "CANCELLED", "InvalidArgument": "INVALID_ARGUMENT", "DeadlineExceeded": "DEADLINE_EXCEEDED", "NotFound": "NOT_FOUND",
	"AlreadyExists": "ALREADY_EXISTS", "PermissionDenied": "PERMISSION_DENIED", "ResourceExhausted": "RESOURCE_EXHAUSTED",
	"FailedPrecondition": "FAILED_PRECONDITION", "Aborted": "ABORTED", "OutOfRange": "OUT_OF_RANGE", "Unimplemented": "UNIMPLEMENTED",
	"Internal": "INTERNAL", "Unavailable": "UNAVAILABLE", "DataLoss": "DATA_LOSS", "Unauthenticated": "UNAUTHENTICATED",
}

// errorCodes returns the code of each reason of an error.
func errorCodes(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, enum := range registry() {
		for _, r := range enum.reasons {
			if enum.name != "ErrorReason" {
				continue
			}
			if r.GetCode() == code.Code_OK {
				t.Errorf("%s has no code", r.text)
			}
			found[r.text] = r.GetCode().String()
		}
	}
	return found
}

// The hints of the command line are for reasons of the registry, or for codes that gRPC gives
// without a reason.
func TestReasons_OfHintsAreInTheRegistry(t *testing.T) {
	known := errorCodes(t)
	for _, code := range codeNames {
		known[code] = code
	}
	found := 0
	eachGoFile(t, func(path string, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			pair, ok := node.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if text, ok := literal(pair.Key); ok {
				found++
				if known[text] == "" {
					t.Errorf("%s has a hint for %s, which no error has as its reason", path, text)
				}
			}
			return true
		})
	}, "internal/cli/exit")
	if found == 0 {
		t.Fatal("found no hint")
	}
}

// The comments of .proto files name reasons with their codes: "ABORTED (SUPERSEDED)".
func TestReasons_OfProtosHaveTheCodeOfTheRegistry(t *testing.T) {
	want := errorCodes(t)
	promise := regexp.MustCompile(`\b(` + strings.Join(names(codeNames), "|") + `) \(([^)]*)\)`)
	name := regexp.MustCompile(`\b[A-Z][A-Z_]{3,}\b`)
	found := 0
	eachFile(t, ".proto", func(path string) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			return
		}
		text := regexp.MustCompile(`\n\s*//\s*`).ReplaceAllString(string(content), " ")
		for _, match := range promise.FindAllStringSubmatch(text, -1) {
			for _, reason := range name.FindAllString(match[2], -1) {
				found++
				if want[reason] != match[1] {
					t.Errorf("%s says %s (%s); the registry has the code %q", path, match[1], reason, want[reason])
				}
			}
		}
	}, "proto")
	if found == 0 {
		t.Fatal("found no reason in the comments")
	}
}

func names(byKey map[string]string) []string {
	var values []string
	for _, value := range byKey {
		values = append(values, value)
	}
	slices.Sort(values)
	return values
}

// constant is a constant with a string.
type constant struct{ name, typeName, value string }

func constantsOf(file *ast.File) []constant {
	var found []constant
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, value := range spec.Values {
			if text, ok := literal(value); ok {
				found = append(found, constant{name: spec.Names[i].Name, typeName: nameOf(spec.Type), value: text})
			}
		}
		return true
	})
	return found
}

// nameOf returns an identifier, or a selector as it is written; empty for any other expression.
func nameOf(expression ast.Expr) string {
	switch named := expression.(type) {
	case *ast.Ident:
		return named.Name
	case *ast.SelectorExpr:
		return nameOf(named.X) + "." + named.Sel.Name
	default:
		return ""
	}
}

func literal(node ast.Node) (string, bool) {
	basic, ok := node.(*ast.BasicLit)
	if !ok || basic.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(basic.Value)
	return text, err == nil
}

// eachGoFile parses the Go files of some folders, tests and generated code left out.
func eachGoFile(t *testing.T, visit func(path string, file *ast.File), folders ...string) {
	t.Helper()
	eachFile(t, ".go", func(path string) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		visit(path, file)
	}, folders...)
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
