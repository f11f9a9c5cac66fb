package docs_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

// A flag that is not in the tables cannot be found; a default that is not the real one is worse.
func TestOperations_ListsEveryFlagWithItsDefault(t *testing.T) {
	text, err := os.ReadFile("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := flagTables(string(text))
	for _, program := range programs() {
		want := flagsOf(program)
		got := maps.Clone(tables["every server"])
		if program.Kube {
			maps.Copy(got, tables["the legs"])
		}
		maps.Copy(got, tables[program.Name]) // last: a server may have a default of its own
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: flags and defaults (-has +documented):\n%s", program.Name, diff)
		}
	}
}

func programs() []process.Program {
	lease, bootstrap, slice, front := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	return []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&front),
	}
}

// flagsOf returns a program's flags with their defaults; those that only print and exit, and --config, are told in prose.
func flagsOf(program process.Program) map[string]string {
	cfg := process.DefaultConfig(program)
	set := pflag.NewFlagSet(program.Name, pflag.ContinueOnError)
	cfg.RegisterFlags(set, program)
	program.RegisterFlags(set)
	flags := map[string]string{}
	set.VisitAll(func(flag *pflag.Flag) { flags["--"+flag.Name] = strings.Trim(flag.DefValue, "[]") })
	return flags
}

// flagTables reads the tables under "### Flags of …", each as flags with their defaults.
func flagTables(text string) map[string]map[string]string {
	row := regexp.MustCompile("^\\| `(--[a-z-]+)` \\| (?:`([^`]*)`)? ?\\|")
	tables := map[string]map[string]string{}
	var table map[string]string
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(line, "### Flags of "); ok {
			table = map[string]string{}
			tables[strings.TrimSpace(title)] = table
		}
		if cells := row.FindStringSubmatch(line); cells != nil && table != nil {
			table[cells[1]] = cells[2]
		}
	}
	return tables
}

// A metric that does not exist never raises an alarm.
func TestOperations_NamesMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	eachFile(t, ".go", func(path string) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		code.Write(content)
	}, "services", "gateway", "internal")
	named := regexp.MustCompile(`\btrivet_[a-z_]+`).FindAllString(string(text), -1)
	if len(named) == 0 {
		t.Fatal("operations.md names no metric")
	}
	for _, metric := range named {
		if !strings.Contains(code.String(), `"`+metric+`"`) {
			t.Errorf("operations.md names %s, which nothing registers", metric)
		}
	}
}

// Links between the documents lead somewhere.
func TestDocuments_LinkToWhatExists(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`)
	documents := []string{"../README.md", "../CONTRIBUTING.md"}
	for _, folder := range []string{".", "adr", "findings"} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), ".md") {
				documents = append(documents, folder+"/"+entry.Name())
			}
		}
	}
	slices.Sort(documents)
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			target := document[:strings.LastIndex(document, "/")+1] + match[1]
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", document, match[1], err)
			}
		}
	}
}
