package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// values is a flag set with one flag of each kind that Trivet uses.
type values struct {
	Config string
	Name   string
	Count  int
	List   []string
	Switch bool
}

func (s *values) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.StringVar(&s.Config, "config", "", "")
	fs.StringVar(&s.Name, "name", "default", "")
	fs.IntVar(&s.Count, "max-count", 1, "")
	fs.StringSliceVar(&s.List, "list", []string{"*"}, "")
	fs.BoolVar(&s.Switch, "switch", false, "")
	return fs
}

func writeConfig(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestApply_CommandLineWinsOverEnvironmentOverFileOverDefault(t *testing.T) {
	path := writeConfig(t, `
apiVersion: config.trivet.dev/v1
kind: TestConfiguration
settings: {name: file, max-count: 500, list: [a, -b], switch: true}
`)
	var got values
	problems := Apply(got.flags(),
		[]string{"--config", path, "--name=line"},
		[]string{"TRIVET_NAME=environment", "TRIVET_MAX_COUNT=7", "HOME=/root"}, "TestConfiguration")
	if problems != nil {
		t.Fatalf("problems: %v", problems)
	}
	want := values{Config: path, Name: "line", Count: 7, List: []string{"a", "-b"}, Switch: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestApply_NumbersOfTheFileArriveAsWritten(t *testing.T) {
	path := writeConfig(t, `
apiVersion: config.trivet.dev/v1
kind: TestConfiguration
settings: {max-count: 9007199254740993, list: [1048576, 0.25]}
`)
	var got values
	if problems := Apply(got.flags(), []string{"--config", path}, nil, "TestConfiguration"); problems != nil {
		t.Fatalf("problems: %v", problems)
	}
	want := values{Config: path, Name: "default", Count: 9007199254740993, List: []string{"1048576", "0.25"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// structure is a flag whose value is JSON.
type structure struct{ text string }

func (s *structure) Type() string   { return StructuredType }
func (s *structure) String() string { return s.text }

func (s *structure) Set(text string) error {
	if !strings.HasPrefix(text, "[") {
		return errors.New("need a list")
	}
	s.text = text
	return nil
}

func TestApply_StructuresOfTheFileArriveAsJSON(t *testing.T) {
	path := writeConfig(t, `
apiVersion: config.trivet.dev/v1
kind: TestConfiguration
settings:
  structure:
  - {name: a, count: 1048576}
  - {name: b, ready: true}
`)
	got := structure{text: "[]"}
	var s values
	fs := s.flags()
	fs.Var(&got, "structure", "")
	if problems := Apply(fs, []string{"--config=" + path}, nil, "TestConfiguration"); problems != nil {
		t.Fatalf("problems: %v", problems)
	}
	if want := `[{"count":1048576,"name":"a"},{"name":"b","ready":true}]`; got.text != want {
		t.Errorf("got %s, want %s", got.text, want)
	}
	problems := Apply(fs, []string{"--structure={}"}, nil, "TestConfiguration")
	if len(problems) != 1 || problems[0].Error() != "--structure: need a list" {
		t.Errorf("problems %v, want what the value says", problems)
	}
}

func TestApply_AMistakeLeavesTheValueAsItWas(t *testing.T) {
	var got values
	problems := Apply(got.flags(), []string{"--max-count=many", "--switch=perhaps", "--list=\"a"}, nil, "TestConfiguration")
	if len(problems) != 3 {
		t.Errorf("problems = %v, want one for each flag", problems)
	}
	want := values{Name: "default", Count: 1, List: []string{"*"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestApply_EveryMistakeIsReportedAtOnce(t *testing.T) {
	path := writeConfig(t, `
apiVersion: config.trivet.dev/v9
kind: TestConfiguration
settings: {max-count: many, colour: red, name: {a: b}}
`)
	var got values
	problems := Apply(got.flags(),
		[]string{"stray", "--unknown", "value", "--switch", "--max-count=x", "--config", path, "--name"},
		[]string{"TRIVET_SWITCH=perhaps", "TRIVET_MAX_COUNT=-"}, "TestConfiguration")
	texts := make([]string, len(problems))
	for i, problem := range problems {
		texts[i] = problem.Error()
	}
	want := []string{
		`argument "stray": only flags of the form --name=value are accepted`,
		`--unknown: unknown flag`,
		`--max-count: "x" is not a valid int`,
		`--name: the value is missing`,
		`TRIVET_MAX_COUNT: "-" is not a valid int`,
		`--config ` + path + `: apiVersion "config.trivet.dev/v9", kind "TestConfiguration": need "config.trivet.dev/v1" and "TestConfiguration"`,
		`--config ` + path + `: settings.colour: unknown setting`,
		`--config ` + path + `: settings.max-count: "many" is not a valid int`,
		`--config ` + path + `: settings.name: need a string, number, boolean or a list of these`,
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestApplyFile_UnreadableOrMalformedIsOneProblem(t *testing.T) {
	for name, path := range map[string]string{
		"absent":          filepath.Join(t.TempDir(), "absent.yaml"),
		"not yaml":        writeConfig(t, "{"),
		"unknown key":     writeConfig(t, "apiVersion: config.trivet.dev/v1\nkind: TestConfiguration\nspec: {}\n"),
		"key given twice": writeConfig(t, "apiVersion: config.trivet.dev/v1\napiVersion: config.trivet.dev/v1\n"),
	} {
		t.Run(name, func(t *testing.T) {
			var got values
			if problems := applyFile(got.flags(), path, "TestConfiguration"); len(problems) != 1 {
				t.Errorf("problems = %v, want exactly one", problems)
			}
		})
	}
}

func TestUnknownVariables_AreReportedButNotThoseOfAService(t *testing.T) {
	var got values
	unknown := UnknownVariables(got.flags(), []string{
		"TRIVET_NAME=x", "TRIVET_MAX_CONUT=3", "TRIVET_TLS_CRT_FILE=x", "HOME=/",
		"TRIVET_LEASESVC_SERVICE_HOST=10.0.0.1", "TRIVET_LEASESVC_SERVICE_PORT_GRPC=1", "TRIVET_LEASESVC_PORT=tcp://10.0.0.1:1",
		"TRIVET_LEASESVC_PORT_7601_TCP=tcp://10.0.0.1:7601", "TRIVET_LEASESVC_PORT_7601_TCP_ADDR=10.0.0.1",
	})
	if diff := cmp.Diff([]string{"TRIVET_MAX_CONUT", "TRIVET_TLS_CRT_FILE"}, unknown); diff != "" {
		t.Errorf("reported variables (-want +got):\n%s", diff)
	}
}

// The values of flags are shown on the admin server. A password may have an @ itself.
func TestValues_HasNoPasswordsOfURLs(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringSlice("etcd-endpoints", []string{"https://root:p@ss@one:2379", "https://two:2379"}, "")
	want := "[https://REDACTED@one:2379,https://two:2379]"
	if got := Values(fs)["etcd-endpoints"]; got != want {
		t.Errorf("the value is %q, want %q", got, want)
	}
}
