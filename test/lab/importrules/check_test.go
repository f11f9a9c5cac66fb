package importrules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck_RepositoryKeepsTheRules(t *testing.T) {
	breaches, err := Check("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, breach := range breaches {
		t.Error(breach)
	}
}

// Each case is the smallest tree that breaks one rule, so that each rule is shown to report.
func TestCheck_EveryBreachIsFound(t *testing.T) {
	for name, c := range map[string]struct{ file, content, want string }{
		"domain reads context":        {"services/slicesvc/internal/pack/a.go", "package pack\n\nimport _ \"context\"\n", "a domain package decides from its parameters"},
		"domain uses grpc":            {"services/slicesvc/internal/pack/a.go", "package pack\n\nimport _ \"google.golang.org/grpc/codes\"\n", "a domain package decides from its parameters"},
		"domain uses proto":           {"services/slicesvc/internal/pack/a.go", "package pack\n\nimport _ \"github.com/trivet-dev/trivet/proto/trivet/slice/v1\"\n", "a domain package imports neither the API"},
		"domain reads the clock":      {"services/leasesvc/internal/session/a.go", "package session\n\nimport \"time\"\n\nvar now = time.Now()\n", "time is a parameter"},
		"service uses service":        {"services/leasesvc/a.go", "package leasesvc\n\nimport _ \"github.com/trivet-dev/trivet/services/slicesvc\"\n", "each service must run without"},
		"service test uses one":       {"services/slicesvc/a_test.go", "package slicesvc\n\nimport _ \"github.com/trivet-dev/trivet/services/leasesvc\"\n", "each service must run without"},
		"service uses gateway":        {"services/bootstrapsvc/a.go", "package bootstrapsvc\n\nimport _ \"github.com/trivet-dev/trivet/gateway\"\n", "the gateway is a client"},
		"gateway uses service":        {"gateway/a.go", "package gateway\n\nimport _ \"github.com/trivet-dev/trivet/services/leasesvc\"\n", "only through their API"},
		"service has HTTP routes":     {"services/leasesvc/a.go", "package leasesvc\n\nimport _ \"github.com/grpc-ecosystem/grpc-gateway/v2/runtime\"\n", "HTTP belongs to the gateway"},
		"shared package uses service": {"internal/loop/a.go", "package loop\n\nimport _ \"github.com/trivet-dev/trivet/services/leasesvc\"\n", "does not depend on its users"},
		"shared package uses proto":   {"internal/loop/a.go", "package loop\n\nimport _ \"github.com/trivet-dev/trivet/proto/trivet/lease/v1\"\n", "serves any API and depends on none"},
		"proto outside the API":       {"services/leasesvc/config.go", "package leasesvc\n\nimport _ \"github.com/trivet-dev/trivet/proto/trivet/lease/v1\"\n", "only internal/api handles"},
		"proto in an adapter":         {"services/leasesvc/internal/leaseobject/a.go", "package leaseobject\n\nimport _ \"github.com/trivet-dev/trivet/proto/trivet/lease/v1\"\n", "only internal/api handles"},
		"agent uses service":          {"agent/a.go", "package agent\n\nimport _ \"github.com/trivet-dev/trivet/services/leasesvc\"\n", "must not pull a server"},
		"command line uses a server":  {"cmd/trivet/internal/check/a.go", "package check\n\nimport _ \"github.com/trivet-dev/trivet/internal/observe\"\n", "trivet is a client"},
		"its package uses a server":   {"internal/etcdconn/a.go", "package etcdconn\n\nimport _ \"github.com/trivet-dev/trivet/internal/term\"\n", "trivet is a client"},
		"product uses the laboratory": {"internal/loop/a.go", "package loop\n\nimport _ \"github.com/trivet-dev/trivet/test/lab/devcluster\"\n", "the product needs no test"},
		"product uses a test kit":     {"services/slicesvc/a.go", "package slicesvc\n\nimport _ \"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest\"\n", "the product needs no test"},
		"upstream in the root":        {"services/slicesvc/a_test.go", "package slicesvc\n\nimport _ \"k8s.io/endpointslice\"\n", "stay in modules of their own"},
		"exit outside main":           {"internal/loop/a.go", "package loop\n\nimport \"os\"\n\nfunc f() { os.Exit(1) }\n", "only main decides"},
		"loop without a limit":        {"gateway/a.go", "package gateway\n\nimport \"github.com/trivet-dev/trivet/internal/loop\"\n\nvar l = loop.Loop{Name: \"a\"}\n", "a loop without Stall"},
		"one of the loops":            {"gateway/a.go", "package gateway\n\nimport \"github.com/trivet-dev/trivet/internal/loop\"\n\nvar l = []loop.Loop{{Name: \"a\", Stall: 1}, {Name: \"b\"}}\n", "a.go:5"},
		"init":                        {"internal/loop/a.go", "package loop\n\nfunc init() {}\n", "work at import time"},
		"nolint":                      {"internal/loop/a.go", "package loop\n\n//nolint:all\nvar x int\n", "exceptions stand in .golangci.yml"},
		"long comment":                {"internal/loop/a.go", "// Package loop is a.\npackage loop\n\n// " + strings.Repeat("word ", 20) + "\nvar x int\n", "comments wrap at 100"},
		"vague name":                  {"internal/util/a.go", "// Package util is vague.\npackage util\n", "after its domain"},
		"no package comment":          {"internal/loop/a.go", "package loop\n", "has no package comment"},
		"heavy module":                {"go.mod", "module github.com/trivet-dev/trivet\n\nrequire k8s.io/apiserver v0.37.1\n\nrequire (\n\tk8s.io/kubernetes v1.37.1\n)\n", "go.mod: k8s.io/kubernetes"},
	} {
		t.Run(name, func(t *testing.T) {
			breaches, err := Check(tree(t, c.file, c.content))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(breaches, "\n"), c.want) {
				t.Errorf("breaches = %q, want one that says %q", breaches, c.want)
			}
		})
	}
}

func tree(t *testing.T, file, content string) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/trivet-dev/trivet\n")
	write(file, content)
	return root
}
