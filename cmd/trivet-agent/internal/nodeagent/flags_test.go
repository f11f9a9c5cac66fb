package nodeagent

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the table of flags instead of comparing it")

// The flags stand in docs/agent.md and not in docs/flags.md, whose test may not import this
// package.
func TestFlags_AreAllDocumented(t *testing.T) {
	const file, begin, end = "../../../../docs/agent.md", "-args -update -->\n", "<!-- end of flags -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		t.Fatalf("%s has no place for the flags", file)
	}
	want := before + begin + flagTable() + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("docs/agent.md is out of date; run go test ./cmd/trivet-agent/internal/nodeagent -run Flags -args -update (-flags +file):\n%s", diff)
	}
}

func flagTable() string {
	cfg := DefaultConfig(nil)
	var table strings.Builder
	table.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	flagSet(&cfg).VisitAll(func(f *pflag.Flag) {
		value := strings.Trim(f.DefValue, "[]")
		if value != "" {
			value = "`" + value + "`"
		}
		table.WriteString("| `--" + f.Name + "` | " + value + " | " + strings.ReplaceAll(f.Usage, "|", "\\|") + " |\n")
	})
	return table.String()
}
