package deploy

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

var update = flag.Bool("update", false, "write the definitions of values.schema.json")

const schemaFile = chartFolder + "/values.schema.json"

// The schema knows the flags, the loops and the dry runs of each server: its definitions are made
// from the programs.
func TestSchema_DefinitionsAreTheServersOwn(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	const last = "\n  \"definitions\": "
	rest, _, found := strings.Cut(string(text), last)
	if !found {
		t.Fatalf("%s has no definitions at its end", schemaFile)
	}
	var definitions bytes.Buffer
	encoder := json.NewEncoder(&definitions)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("  ", "  ")
	if err := encoder.Encode(schemaDefinitions()); err != nil {
		t.Fatal(err)
	}
	want := rest + last + strings.TrimSpace(definitions.String()) + "\n}\n"
	if *update {
		if err := os.WriteFile(schemaFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not that of the servers; go test ./test/deploy -run Schema -args -update writes it", schemaFile)
	}
}

func schemaDefinitions() map[string]any {
	definitions := map[string]any{}
	for command, program := range programs() {
		name := strings.TrimPrefix(command, "/")
		loop := `(\*|-?(` + strings.Join(program.Loops, "|") + `))`
		definitions[name+".flags"] = flagsSchema(program)
		definitions[name+".loops"] = map[string]any{"type": "string", "pattern": "^(" + loop + "(," + loop + ")*)?$"}
		if len(program.DryRuns) > 0 {
			definitions[name+".dryRun"] = map[string]any{"type": "array", "uniqueItems": true, "items": map[string]any{"enum": program.DryRuns}}
		}
	}
	return definitions
}

// flagsSchema has a pattern for the names of all flags of a kind. A value of --set may be a string.
func flagsSchema(program process.Program) map[string]any {
	kinds := []struct {
		of     func(kind string) bool
		schema map[string]any
	}{
		{func(kind string) bool { return kind == "bool" }, map[string]any{"enum": []any{true, false, "true", "false"}}},
		{numeric, map[string]any{"type": []string{"number", "string"}, "pattern": `^-?[0-9.]+$`}},
		{func(kind string) bool { return kind == "duration" }, map[string]any{"type": []string{"string", "number"}, "maximum": 0, "pattern": `^(0|-?([0-9.]+(ns|us|ms|s|m|h))+)$`}},
		{func(string) bool { return true }, map[string]any{"type": []string{"string", "number", "boolean"}}},
	}
	names := make([][]string, len(kinds))
	defaultFlags(program).VisitAll(func(flag *pflag.Flag) {
		for i, kind := range kinds {
			if kind.of(flag.Value.Type()) {
				names[i] = append(names[i], flag.Name)
				return
			}
		}
	})
	patterns := map[string]any{}
	for i, kind := range kinds {
		if len(names[i]) > 0 {
			patterns["^("+strings.Join(names[i], "|")+")$"] = kind.schema
		}
	}
	return map[string]any{"type": "object", "additionalProperties": false, "patternProperties": patterns}
}

// setting is a value, and whether the schema takes it.
type setting struct {
	path  string
	value any
	taken bool
}

// What a server refuses, the schema refuses, and nothing else of these. One run of helm has one
// value of each path.
func TestSchema_RefusesWhatServersRefuse(t *testing.T) {
	settings := []setting{
		{"servers.leasesvc.loops", "", true}, {"servers.leasesvc.loops", "*", true}, {"servers.leasesvc.loops", "*,-node-health", true},
		{"servers.leasesvc.loops", "none", false}, {"servers.leasesvc.loops", "-*", false}, {"servers.leasesvc.loops", "*,", false},
		{"servers.leasesvc.loops", "node-health,slices", false},
		{"servers.leasesvc.flags.max-recv-bytes", 1048576, true}, {"servers.leasesvc.flags.max-recv-bytes", "1048576", true},
		{"servers.leasesvc.flags.max-recv-bytes", "many", false}, {"servers.leasesvc.flags.max-recv-byte", 1, false},
		{"servers.leasesvc.flags.insecure", true, true}, {"servers.leasesvc.flags.insecure", "yes", false},
		{"servers.leasesvc.flags.drain-timeout", "10s", true}, {"servers.leasesvc.flags.drain-timeout", 0, true}, {"servers.leasesvc.flags.drain-timeout", 10, false},
		{"servers.leasesvc.flags.write-policy", "relaxed", true}, {"servers.leasesvc.flags.managed-by", "x", false}, // of slicesvc
	}
	for _, name := range []string{"default", "prod-1", "a", "1.b", "prod/1", "Prod", "", "-a", strings.Repeat("a", 64)} {
		cfg := process.DefaultConfig(programs()["/leasesvc"])
		cfg.Cluster = name
		settings = append(settings, setting{"cluster.name", name, !concerns(cfg.Validate(programs()["/leasesvc"]), "--cluster")})
	}
	for _, name := range []string{"trivet.dev", "a", "A_1", "has space", "-a", strings.Repeat("a", 64), "endpointslicemirroring-controller.k8s.io"} {
		cfg := slicesvc.DefaultConfig()
		cfg.ManagedBy = name
		settings = append(settings, setting{"servers.slicesvc.managedBy", name, !concerns(cfg.Validate(), "--managed-by")})
	}
	for len(settings) > 0 {
		var round, left []setting
		for _, s := range settings {
			if slices.ContainsFunc(round, func(other setting) bool { return other.path == s.path || other.taken != s.taken }) {
				left = append(left, s)
			} else {
				round = append(round, s)
			}
		}
		settings = left
		expectAnswer(t, round)
	}
}

func concerns(problems []error, flag string) bool {
	return slices.ContainsFunc(problems, func(problem error) bool { return strings.HasPrefix(problem.Error(), flag) })
}

// expectAnswer renders the chart with settings, which are all taken or all refused. A refusal names
// each.
func expectAnswer(t *testing.T, settings []setting) {
	t.Helper()
	args := append([]string{"template", "trivet", chartFolder, "--namespace", system}, set(etcdEndpoint)...)
	for _, s := range settings {
		value, err := json.Marshal(s.value)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "--set-json", s.path+"="+string(value))
	}
	_, err := runHelm(t, args...)
	for _, s := range settings {
		name := s.path[strings.LastIndex(s.path, ".")+1:] + "'" // as a part of the path, or as a property
		if (err != nil && strings.Contains(err.Error(), name)) == s.taken {
			t.Errorf("%s=%v: %v, want taken: %v", s.path, s.value, err, s.taken)
		}
	}
	if err != nil && settings[0].taken {
		t.Error(err)
	}
}

// The chart is a part of another one, which turns it on and off and has values for all its parts.
func TestChart_IsAPartOfAnotherChart(t *testing.T) {
	folder := t.TempDir()
	chart, err := filepath.Abs(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	umbrella := "apiVersion: v2\nname: platform\nversion: 1.0.0\ndependencies:\n- {name: trivet, version: 0.1.0, condition: trivet.enabled}\n"
	if err := os.WriteFile(filepath.Join(folder, "Chart.yaml"), []byte(umbrella), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(folder, "charts"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(chart, filepath.Join(folder, "charts", "trivet")); err != nil {
		t.Fatal(err)
	}
	for enabled, want := range map[bool]int{true: len(template(t, set(etcdEndpoint)...)), false: 0} {
		values := map[string]any{
			"global": map[string]any{"domain": "example.org"},
			"trivet": map[string]any{"enabled": enabled, "etcd": map[string]any{"endpoints": []string{"https://etcd.trivet-system.svc:2379"}}},
		}
		output, err := runHelm(t, "template", "trivet", folder, "--namespace", system, "-f", valuesFile(t, values))
		if err != nil {
			t.Fatal(err)
		}
		if objects := objectsOf(t, []byte(output)); len(objects) != want {
			t.Errorf("enabled %v: %d objects, want %d", enabled, len(objects), want)
		}
	}
}
