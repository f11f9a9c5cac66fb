package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/settings"
)

func TestSelectProgram_TakesTheNameOfTheFileBeforeTheFirstArgument(t *testing.T) {
	for name, c := range map[string]struct {
		argv []string
		want string // name of the program; empty for none
		args []string
	}{
		"link":                        {[]string{"leasesvc"}, "leasesvc", nil},
		"link in the image":           {[]string{"/bootstrapsvc", "--insecure"}, "bootstrapsvc", []string{"--insecure"}},
		"relative link":               {[]string{"bin/slicesvc", "--shards=2", "--version"}, "slicesvc", []string{"--shards=2", "--version"}},
		"link to the gateway":         {[]string{"../gateway", "--help"}, "gateway", []string{"--help"}},
		"link beside an argument":     {[]string{"/gateway", "leasesvc"}, "gateway", []string{"leasesvc"}},
		"argument":                    {[]string{"trivet-server", "leasesvc"}, "leasesvc", nil},
		"argument with flags":         {[]string{"/trivet-server", "slicesvc", "--version"}, "slicesvc", []string{"--version"}},
		"argument below another name": {[]string{"/opt/server-v1", "gateway", "--insecure"}, "gateway", []string{"--insecure"}},
		"nothing":                     {[]string{"trivet-server"}, "", nil},
		"unknown name":                {[]string{"trivet-server", "leases"}, "", []string{"leases"}},
		"flag before the name":        {[]string{"trivet-server", "--insecure", "leasesvc"}, "", []string{"--insecure", "leasesvc"}},
		"path as an argument":         {[]string{"trivet-server", "/leasesvc"}, "", []string{"/leasesvc"}},
		"name of the folder":          {[]string{"leasesvc/trivet-server"}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			program, args, found := selectProgram(programs(), c.argv)
			if program.Name != c.want || found != (c.want != "") || !slices.Equal(args, c.args) {
				t.Errorf("%q selects %q (%t) with %q, want %q with %q", c.argv, program.Name, found, args, c.want, c.args)
			}
		})
	}
}

// Other programs have a link for each server. They cannot import this package, so their lists are
// read from their files.
func TestPrograms_HaveTheNamesOfTheLinks(t *testing.T) {
	var want []string
	for _, program := range programs() {
		want = append(want, program.Name)
	}
	for file, list := range map[string]string{
		"Makefile":                        `(?m)^link-servers .*for server in ([^;]+);`,
		"tools/image/compile.go":          `func servers\(\) \[\]string \{ return \[\]string\{(.+)\} \}`,
		"test/lab/gobuild/gobuild.go":     `func servers\(\) \[\]string \{ return \[\]string\{(.+)\} \}`,
		"test/lab/nodecluster/cluster.go": `"trivet-server", (.+), "trivet", "trivet-agent"\}`,
	} {
		content, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(list).FindAllStringSubmatch(string(content), -1)
		if len(found) != 1 {
			t.Errorf("%s has %d lists of servers, want 1", file, len(found))
			continue
		}
		if got := strings.FieldsFunc(found[0][1], func(r rune) bool { return strings.ContainsRune(`", `, r) }); !slices.Equal(got, want) {
			t.Errorf("%s links the servers %q, want %q", file, got, want)
		}
	}
}

func TestAnswer_NamesAllServers(t *testing.T) {
	for name, c := range map[string]struct {
		args           []string
		code           int
		stdout, stderr []string
	}{
		"nothing":      {nil, settings.ExitUsage, nil, []string{"leasesvc, bootstrapsvc, slicesvc, gateway", "'trivet-server --help'"}},
		"unknown name": {[]string{"leases"}, settings.ExitUsage, nil, []string{"leasesvc, bootstrapsvc, slicesvc, gateway"}},
		"help": {[]string{"--help"}, settings.ExitOK,
			[]string{"trivet-server: ", "\n  leasesvc ", "\n  bootstrapsvc ", "\n  slicesvc ", "\n  gateway ", "--version"}, nil},
		"short help": {[]string{"-h"}, settings.ExitOK, []string{"\n  leasesvc "}, nil},
		"version":    {[]string{"--version"}, settings.ExitOK, []string{"trivet-server " + identity.Version() + "\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := answer(t.Context(), settings.Invocation{Args: c.args, Stdout: &stdout, Stderr: &stderr})
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			requireText(t, "standard output", stdout.String(), c.stdout)
			requireText(t, "standard error", stderr.String(), c.stderr)
		})
	}
}

// requireText fails the test unless text has all parts, or is empty if there are none.
func requireText(t *testing.T, what, text string, parts []string) {
	t.Helper()
	if len(parts) == 0 && text != "" {
		t.Errorf("%s is %q, want nothing", what, text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s is %q, want %q in it", what, text, part)
		}
	}
}
