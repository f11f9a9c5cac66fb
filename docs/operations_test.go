package docs_test

import (
	"flag"
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

var update = flag.Bool("update", false, "write flags.md and reasons.md instead of comparing them")

// flags.md is generated from the flags: go test ./docs -run Flags -args -update
func TestFlags_AreAllDocumented(t *testing.T) {
	want := flagReference(t)
	if *update {
		if err := os.WriteFile("flags.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, document(t, "flags.md")); diff != "" {
		t.Errorf("flags.md is out of date; run go test ./docs -run Flags -args -update (-flags +file):\n%s", diff)
	}
}

// flagReference renders the flags of all servers. A flag that all have with one default is listed
// once.
func flagReference(t *testing.T) string {
	t.Helper()
	all := programs()
	sets := map[string]map[string]*pflag.Flag{}
	for _, program := range all {
		sets[program.Name] = flagsOf(program)
	}
	shared := map[string]*pflag.Flag{}
	for name, flag := range sets[all[0].Name] {
		if !slices.ContainsFunc(all, func(p process.Program) bool {
			other := sets[p.Name][name]
			return other == nil || other.DefValue != flag.DefValue || other.Usage != flag.Usage
		}) {
			shared[name] = flag
		}
	}
	var text strings.Builder
	text.WriteString("# Flags\n\nThis page is generated from the flags of the servers. Each flag has an environment variable: " +
		"`--etcd-endpoints`\nis `TRIVET_ETCD_ENDPOINTS`. [operations.md](operations.md#configure) explains the configuration file.\n")
	table := func(title string, flags map[string]*pflag.Flag) {
		text.WriteString("\n## " + title + "\n\n| flag | default | meaning |\n|---|---|---|\n")
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			value := strings.Trim(flags[name].DefValue, "[]")
			if value != "" {
				value = "`" + value + "`"
			}
			usage := strings.NewReplacer("|", "\\|", "\n", " ").Replace(flags[name].Usage)
			text.WriteString("| `--" + name + "` | " + value + " | " + usage + " |\n")
		}
	}
	table("Every server", shared)
	for _, program := range all {
		own := maps.Clone(sets[program.Name])
		maps.DeleteFunc(own, func(name string, _ *pflag.Flag) bool { return shared[name] != nil })
		table(program.Name, own)
	}
	return text.String()
}

func programs() []process.Program {
	lease, bootstrap, slice, front := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	return []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&front),
	}
}

func flagsOf(program process.Program) map[string]*pflag.Flag {
	cfg := process.DefaultConfig(program)
	set := pflag.NewFlagSet(program.Name, pflag.ContinueOnError)
	cfg.RegisterFlags(set)
	program.RegisterFlags(set)
	flags := map[string]*pflag.Flag{}
	set.VisitAll(func(flag *pflag.Flag) { flags[flag.Name] = flag })
	return flags
}

// An alert on a missing metric never fires.
func TestOperations_NamesMetricsThatExist(t *testing.T) {
	text := document(t, "operations.md") + document(t, "runbooks/README.md")
	var code strings.Builder
	eachFile(t, ".go", func(path string) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		code.Write(content)
	}, "services", "gateway", "internal")
	named := regexp.MustCompile(`\btrivet_[a-z_]+`).FindAllString(text, -1)
	if len(named) == 0 {
		t.Fatal("operations.md and the runbooks name no metric")
	}
	for _, metric := range named {
		if !strings.Contains(code.String(), `"`+metric+`"`) {
			t.Errorf("a page names %s, which nothing registers", metric)
		}
	}
}
