package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// A configuration file, arguments and a variable are taken, or each problem names its source. A
// value that is refused is not in effect.
func FuzzApply(f *testing.F) {
	const head = "apiVersion: " + APIVersion + "\nkind: Test\nsettings:\n"
	for _, text := range []string{
		head + "  number: 7\n  pause: 5s\n  names: [a, b]\n", head + "  number: 1e400\n", head + "  number: {a: 1}\n", head + "  pause: [1, [2]]\n",
		head + "  names: null\n  names: x\n", head + "  config: x\n", "a: &a [*a]", "a: &a [1,1,1,1]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]", "\x00", "- - - -", "{", "%YAML 9.9\n---\n", head + "  ? [a]\n  : b\n",
		head + "  unknown: \"\x1b[2J\"\n",
	} {
		f.Add(text, "--number=3", "TRIVET_PAUSE=1s")
	}
	f.Add(head, "--number", "TRIVET_NUMBER=\xff")
	f.Add(head, "--=", "TRIVET_")
	f.Add(head, "-n", "TRIVET_SERVICE_HOST=x")
	path := filepath.Join(f.TempDir(), "config.yaml")
	f.Fuzz(func(t *testing.T, text, argument, variable string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		number, pause := fs.Int("number", 1, ""), fs.Duration("pause", time.Second, "")
		fs.StringSlice("names", nil, "")
		fs.String("config", "", "")
		problems := Apply(fs, []string{"--config=" + path, argument}, []string{variable}, "Test")
		for _, problem := range problems {
			if problem == nil || !strings.Contains(problem.Error(), "-") && !strings.Contains(problem.Error(), "TRIVET_") && !strings.Contains(problem.Error(), "argument") {
				t.Errorf("problem %v names no source", problem)
			}
		}
		if !fs.Changed("number") && *number != 1 || !fs.Changed("pause") && *pause != time.Second {
			t.Errorf("values %d and %v of unchanged flags, after %v", *number, *pause, problems)
		}
		_ = UnknownVariables(fs, []string{variable})
	})
}
