package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

// pair has two items of each kind, the second one with the smaller number in its name.
func pair() *commandtest.Gateway {
	both := func(name string) [2]string { return [2]string{name + "10", name + "9"} }
	node, lease, service := both("nodes/n"), both("namespaces/kube-node-lease/leases/n"), both("namespaces/shop/serviceslices/web")
	finding, plan, repair, zone := both("findings/leaked.node-ports.3"), both("repairplans/p"), both("repairs/r"), both("zones/eu:z")
	decision := both("decisions/20261123T06275")
	difference := &shadowv1.ListDifferencesResponse{Differences: []*shadowv1.Difference{{Name: "differences/n10"}, {Name: "differences/n9"}}}
	for _, loop := range []string{"node-health", "endpointslices", "system-namespaces", "kubernetes-service"} {
		difference.Comparisons = append(difference.Comparisons, &shadowv1.Comparison{Loop: loop})
	}
	return &commandtest.Gateway{
		Decisions:   []*statusv1.Decision{{Name: decision[0]}, {Name: decision[1]}},
		Differences: []*shadowv1.ListDifferencesResponse{difference},
		Nodes:       []*nodev1.NodeHealth{{Name: node[0]}, {Name: node[1]}},
		Leases:      []*leasev1.Lease{{Name: lease[0]}, {Name: lease[1]}},
		Services:    []*slicev1.ServiceSlices{{Name: service[0]}, {Name: service[1]}},
		APIServers:  []*bootstrapv1.APIServer{{Name: "apiservers/10.0.0.10", Address: "10.0.0.10"}, {Name: "apiservers/10.0.0.9", Address: "10.0.0.9"}},
		Findings:    []*bootstrapv1.Finding{{Name: finding[0], State: bootstrapv1.Finding_STATE_OPEN}, {Name: finding[1], State: bootstrapv1.Finding_STATE_OPEN}},
		Plans:       []*bootstrapv1.RepairPlan{{Name: plan[0]}, {Name: plan[1]}},
		Repairs:     []*bootstrapv1.Repair{{Name: repair[0]}, {Name: repair[1]}},
		Shards:      []*statusv1.ShardStatus{{Name: "shards/leasesvc/10", Service: "leasesvc", Shard: proto.Int32(10)}, {Name: "shards/leasesvc/9", Service: "leasesvc", Shard: proto.Int32(9)}},
		Zones:       &nodev1.ListZonesResponse{Zones: []*nodev1.Zone{{Name: zone[0]}, {Name: zone[1]}}},
	}
}

// walk calls visit for each command that can be run, with its words.
func walk(command *cobra.Command, words []string, visit func(*cobra.Command, []string)) {
	for _, child := range command.Commands() {
		path := append(slices.Clone(words), child.Name())
		if child.Runnable() && child.Name() != "help" && child.Name() != "completion" {
			visit(child, path)
		}
		walk(child, path, visit)
	}
}

// hasChildrenOnly reports whether a command only shows the help of its subcommands.
func hasChildrenOnly(command *cobra.Command) bool {
	return command.HasSubCommands() && command.Flags().Lookup("output") == nil && command.Flags().Lookup("server") == nil
}

func TestTree_EveryCommandHasTheCommonFlags(t *testing.T) {
	// These have no answer in a form.
	withoutForms := []string{"dashboard", "debug bundle", "debug log-level"}
	walk(command(commandtest.Pipe(nil, nil)), nil, func(c *cobra.Command, words []string) {
		name, flags := strings.Join(words, " "), c.Flags()
		if c.Short == "" || (c.Example == "" && !hasChildrenOnly(c) && !c.Hidden) {
			t.Errorf("trivet %s has no short text or no example", name)
		}
		if got := commandtest.Run(t, commandtest.Terminal{}, command, append(words, "--no-such-flag")...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("trivet %s with an unknown flag: %s", name, got)
		}
		if flags.Lookup("server") == nil || slices.Contains(withoutForms, name) {
			return
		}
		for _, flag := range []string{"output", "color", "quiet", "timeout"} {
			if flags.Lookup(flag) == nil {
				t.Errorf("trivet %s has no --%s; use client.Flags", name, flag)
				return
			}
		}
		for _, form := range printer.DocumentForms() {
			if !strings.Contains(flags.Lookup("output").Usage, form) {
				t.Errorf("trivet %s has no -o %s", name, form)
			}
		}
		if flags.Lookup("output").DefValue == "table" && flags.Lookup("no-headers") == nil {
			t.Errorf("trivet %s has a table and no --no-headers", name)
		}
		for _, flag := range []string{"output", "color"} {
			if complete, exists := c.GetFlagCompletionFunc(flag); !exists || len(first(complete(c, nil, ""))) == 0 {
				t.Errorf("trivet %s does not complete --%s", name, flag)
			}
		}
		if c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 {
			t.Errorf("trivet %s does not complete its arguments, not even with cobra.NoFileCompletions", name)
		}
	})
}

// The remedy of a check names a command line that trivet takes, with its arguments and flags. A
// flag alone is one of the command before it, of trivet check, or of a server.
func TestTree_RemediesOfChecksAreCommands(t *testing.T) {
	// Command lines and flags of other programs, and what runs them.
	others := map[string]string{
		"kubectl -n NAMESPACE describe pod NAME": "no test: it only shows more",
		"kubectl logs --previous":                "no test: it only shows more",
		"helm upgrade --force-conflicts":         "test/deploy: TestRelease_UpgradesFromAnEarlierChart",
		"--runtime-config":                       "a flag of kube-apiserver",
	}
	servers, err := os.ReadFile("../../docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`((?:trivet |kubectl |helm |--)[^`]+)`")
	used := map[string]bool{}
	for _, check := range diagnosis.Catalogue() {
		commands := []*cobra.Command{commandOf(t, "check")}
		for _, match := range quoted.FindAllStringSubmatch(check.Action, -1) {
			line := match[1]
			used[line] = true
			switch words := strings.Fields(line); {
			case others[line] != "":
			case words[0] == "trivet":
				named := commandOf(t, words[1:]...)
				if err := parse(named, words[1:]); err != nil {
					t.Errorf("check %s names `%s`: %v", check.ID, line, err)
				}
				commands = append(commands, named)
			case words[0][0] != '-' || len(words) > 1:
				t.Errorf("check %s names `%s`, which no test knows", check.ID, line)
			case !hasFlag(commands, line[2:]) && !strings.Contains(string(servers), "`"+line+"`"):
				t.Errorf("check %s names %s, which is no flag of trivet check, of the named command or of a server", check.ID, line)
			}
		}
	}
	for line := range others {
		if !used[line] {
			t.Errorf("no remedy names `%s` any more", line)
		}
	}
	if len(used) < 15 {
		t.Errorf("%d command lines and flags in remedies", len(used))
	}
}

// commandOf returns the command that a command line runs.
func commandOf(t *testing.T, words ...string) *cobra.Command {
	t.Helper()
	found, _, err := command(commandtest.Pipe(nil, nil)).Find(words)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// parse does what the command does before it runs.
func parse(c *cobra.Command, words []string) error {
	if !c.HasParent() || !c.Runnable() {
		return errors.New("it is no command that can be run")
	}
	args := words[len(strings.Fields(c.CommandPath()))-1:]
	if err := c.ParseFlags(args); err != nil {
		return err
	}
	if asked, unknown := c.Flags().GetString("output"); unknown == nil && c.Flags().Changed("output") {
		complete, _ := c.GetFlagCompletionFunc("output")
		values := strings.Join(first(complete(c, nil, "")), " ")
		if !strings.Contains(values, asked) {
			return fmt.Errorf("--output %s is none of %s", asked, values)
		}
	}
	return errors.Join(c.ValidateArgs(c.Flags().Args()), c.ValidateRequiredFlags(), c.ValidateFlagGroups())
}

func hasFlag(commands []*cobra.Command, name string) bool {
	return slices.ContainsFunc(commands, func(c *cobra.Command) bool { return c.Flags().Lookup(name) != nil })
}

func first[T, U any](value T, _ U) T { return value }

// Each list command works in each form, and sorts and completes what it lists.
func TestTree_EveryListWorksInEachForm(t *testing.T) {
	server := commandtest.Serve(t, pair())
	lists := 0
	walk(command(commandtest.Pipe(nil, nil)), nil, func(c *cobra.Command, words []string) {
		if c.Flags().Lookup("sort-by") == nil {
			return
		}
		lists++
		run := func(args ...string) commandtest.Transcript {
			return commandtest.Run(t, commandtest.Terminal{}, command, slices.Concat(words, []string{"--server", server}, args)...)
		}
		t.Run(strings.Join(words, "-"), func(t *testing.T) {
			checkForms(t, run)
			checkSorting(t, run)
			if strings.Contains(c.Use, "[") {
				checkCompletion(t, words, server, firstLine(run("--no-headers").Stdout))
			}
		})
	})
	if lists < 10 {
		t.Errorf("the tree has %d lists", lists)
	}
}

func checkForms(t *testing.T, run func(...string) commandtest.Transcript) {
	t.Helper()
	table := run()
	titles, rows, _ := strings.Cut(table.Stdout, "\n")
	if titles != strings.ToUpper(titles) || strings.Count(rows, "\n") != 2 || (table.Code != exit.OK && table.Code != exit.Findings) {
		t.Fatalf("the table: %s", table)
	}
	if !strings.HasPrefix(table.Stderr, "2 ") {
		t.Errorf("no count on standard error: %s", table)
	}
	if got := run("--no-headers", "-q"); got.Code != table.Code || !slices.Equal(strings.Fields(got.Stdout), strings.Fields(rows)) || strings.HasPrefix(got.Stderr, "2 ") {
		t.Errorf("--no-headers --quiet: %s", got)
	}
	if got := run("-o", "wide"); got.Code != table.Code || len(firstLine(got.Stdout)) < len(titles) {
		t.Errorf("-o wide: %s", got)
	}
	names := run("-o", "name")
	if names.Code != table.Code || strings.Count(names.Stdout, "\n") != 2 || strings.ContainsAny(names.Stdout, " \t") {
		t.Errorf("-o name: %s", names)
	}
	var fromJSON, fromYAML any
	if got := run("-o", "json"); got.Code != table.Code || json.Unmarshal([]byte(got.Stdout), &fromJSON) != nil {
		t.Errorf("-o json: %s", got)
	}
	if got := run("-o", "yaml"); got.Code != table.Code || yaml.Unmarshal([]byte(got.Stdout), &fromYAML) != nil {
		t.Errorf("-o yaml: %s", got)
	}
	items := itemsField(fromJSON)
	if items == "" || items != itemsField(fromYAML) {
		t.Fatalf("two items are in field %q of JSON and %q of YAML", items, itemsField(fromYAML))
	}
	if got := run("-o", `jsonpath={range .`+items+`[*]}{.name}{"\n"}{end}`); got.Code != table.Code || got.Stdout != names.Stdout {
		t.Errorf("-o jsonpath: %s", got)
	}
	if got := run("-o", "jsonpath={"); got.Code != exit.Usage || got.Stdout != "" {
		t.Errorf("a wrong template: %s", got)
	}
}

// itemsField returns the field of a document that has two items; empty without one.
func itemsField(document any) string {
	fields, _ := document.(map[string]any)
	for name, value := range fields {
		if items, _ := value.([]any); len(items) == 2 {
			return name
		}
	}
	return ""
}

func checkSorting(t *testing.T, run func(...string) commandtest.Transcript) {
	t.Helper()
	unsorted := strings.Fields(run("-o", "name").Stdout)
	for _, by := range []string{"{.name}", ".name"} {
		sorted := strings.Fields(run("-o", "name", "--sort-by", by).Stdout)
		if len(unsorted) != 2 || !slices.Equal(sorted, []string{unsorted[1], unsorted[0]}) {
			t.Errorf("--sort-by %s: %q, unsorted %q", by, sorted, unsorted)
		}
	}
	for _, column := range strings.Fields(firstLine(run().Stdout))[:2] {
		if got := run("--sort-by", strings.ToLower(column)); got.Code == exit.Usage || strings.Count(got.Stdout, "\n") != 3 {
			t.Errorf("--sort-by %s: %s", column, got)
		}
	}
	if got := run("--sort-by", "no-such-column"); got.Code != exit.Usage || !strings.Contains(got.Stderr, "must be a column, one of ") {
		t.Errorf("--sort-by no-such-column: %s", got)
	}
}

func checkCompletion(t *testing.T, words []string, server, row string) {
	t.Helper()
	complete := func(server string) commandtest.Transcript {
		return commandtest.Run(t, commandtest.Terminal{}, command, slices.Concat([]string{"__complete"}, words, []string{"--server", server, ""})...)
	}
	name := ":4" // without a name: a completion gives up after a second
	for began := time.Now(); name == ":4" && time.Since(began) < time.Minute; {
		name, _, _ = strings.Cut(strings.Fields(complete(server).Stdout)[0], "\t")
	}
	if _, number, isPath := strings.Cut(name, "/"); !strings.Contains(row, name) && (!isPath || !strings.Contains(row, number)) {
		t.Errorf("completes %q, which is not in the row %q", name, row)
	}
	if got := complete("127.0.0.1:1"); got.Code != exit.OK || !strings.HasPrefix(got.Stdout, ":4\n") || strings.Contains(got.Stderr, "refused") {
		t.Errorf("without a gateway: %s", got)
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
