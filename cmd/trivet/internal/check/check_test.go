package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func newCommand(streams printer.Streams) *cobra.Command { return NewCommand(streams) }

// Each check of the catalogue has a task, and each task a check.
func TestTasks_AreThoseOfTheCatalogue(t *testing.T) {
	for _, c := range []*command{{pre: true, machine: machine{node: "yes"}}, {pre: true, machine: machine{node: "no"}}, {}} {
		tasks := c.tasks(&sources{})
		checks := diagnosis.Checks(c.pre)
		for _, check := range checks {
			if tasks[check.ID] == nil {
				t.Errorf("check %s has no task", check.ID)
			}
		}
		if len(tasks) != len(checks) {
			t.Errorf("%d tasks for %d checks", len(tasks), len(checks))
		}
	}
}

func fixedChecks(ids ...string) []diagnosis.Check {
	all := diagnosis.Catalogue()
	var chosen []diagnosis.Check
	for _, id := range ids {
		chosen = append(chosen, all[slices.IndexFunc(all, func(c diagnosis.Check) bool { return c.ID == id })])
	}
	return chosen
}

func TestRunRound_HungCheckDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		defer close(forever)
		tasks := map[string]task{
			"replicas": func(context.Context) (diagnosis.Result, error) {
				<-forever // it ignores its context
				return diagnosis.Result{}, nil
			},
			"shards": func(ctx context.Context) (diagnosis.Result, error) {
				<-ctx.Done()
				return diagnosis.Result{}, ctx.Err()
			},
			"loops": func(context.Context) (diagnosis.Result, error) {
				return diagnosis.Result{State: diagnosis.Failed, Found: "A loop fails."}, nil
			},
		}
		var left [][]string
		began := time.Now()
		results := runRound(t.Context(), fixedChecks("replicas", "shards", "loops"), tasks, time.Second, func(ids []string) { left = append(left, ids) })
		if took := time.Since(began); took > time.Second+graceTime {
			t.Errorf("took %s", took)
		}
		for i, want := range []diagnosis.State{diagnosis.Unknown, diagnosis.Unknown, diagnosis.Failed} {
			if results[i].result.State != want || results[i].result.Found == "" {
				t.Errorf("%s: %+v, want %s", results[i].check.ID, results[i].result, want)
			}
		}
		if len(left) == 0 || !slices.Equal(left[0], []string{"replicas", "shards"}) {
			t.Errorf("progress %v", left)
		}
	})
}

// What could not be determined has a remedy for that, and its causes without the text of gRPC.
func TestRunTask_CausesAndRemediesOfTheUndetermined(t *testing.T) {
	lost := status.Error(codes.Unavailable, "no replica of leasesvc")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	action := fixedChecks("agents")[0].Action
	for _, c := range []struct {
		err         error
		found, hint string
	}{
		{errors.Join(lost, errors.New("x")), "no replica of leasesvc; x.", "Remove the cause"},
		{fmt.Errorf("ask: %w", lost), "no replica of leasesvc.", "Remove the cause"},
		{&exit.Error{Err: errors.New("y"), Try: "do z"}, "y.", "do z"},
		{forbidden, "pods is forbidden", "trivet-checker"},
	} {
		result := runTask(t.Context(), func(context.Context) (diagnosis.Result, error) { return diagnosis.Result{}, c.err })
		hint := hintOf(finished{fixedChecks("agents")[0], result})
		if !strings.Contains(result.Found, c.found) || strings.Contains(result.Found, "rpc error") || strings.Contains(result.Found, "\n") {
			t.Errorf("%v: %q, want %q", c.err, result.Found, c.found)
		}
		if !strings.Contains(hint, c.hint) || hint == strings.TrimSuffix(action, ".") {
			t.Errorf("%v: the remedy is %q, want %q", c.err, hint, c.hint)
		}
	}
}

func TestShared_IsReadOnceAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		fact := newShared(func(context.Context) (int, error) {
			reads++
			time.Sleep(time.Second)
			return reads, nil
		})
		early, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := fact.get(early); err == nil {
			t.Error("get() had an answer before the read has ended")
		}
		for range 3 {
			if value, err := fact.get(t.Context()); value != 1 || err != nil {
				t.Errorf("get() = %d, %v", value, err)
			}
		}
	})
}

// fixedResults have each state.
func fixedResults() []finished {
	checks := fixedChecks("replicas", "shards", "versions", "lag", "rights-slicesvc", "agents")
	results := []diagnosis.Result{
		{State: diagnosis.OK, Found: "3 replicas are ready."},
		{State: diagnosis.Failed, Found: "1 of 64 shards of slicesvc have no leader."},
		{State: diagnosis.Warning, Found: "This program has version v2; leasesvc a has v1\x1b[31m."},
		{State: diagnosis.Unknown, Found: "It could not be determined: no answer within 10s."},
		{State: diagnosis.Failed, Found: "slicesvc may not list pods.", Hint: "Apply the roles"},
		{State: diagnosis.Skipped, Found: "The cluster has no Node."},
	}
	var all []finished
	for i, check := range checks {
		all = append(all, finished{check, results[i]})
	}
	return all
}

func TestPrint_EachFormat(t *testing.T) {
	for name, c := range map[string]struct {
		output, color string
	}{
		"text.txt": {"text", "never"}, "colours.txt": {"text", "always"}, "short.txt": {"short", "never"}, "json.txt": {"json", "never"},
	} {
		var stdout, stderr strings.Builder
		run := command{streams: commandtest.Pipe(&stdout, &stderr)}
		run.Register(&cobra.Command{}, run.streams, "text", "short")
		run.Output, run.Color = c.output, c.color
		if err := run.print(fixedResults()); err != nil {
			t.Fatal(err)
		}
		commandtest.Golden(t, name, stdout.String()+"-- stderr --\n"+stderr.String())
	}
}

func TestVerdict_ExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		states []diagnosis.State
		strict bool
		want   int
	}{
		"ok":                    {[]diagnosis.State{diagnosis.OK, diagnosis.Skipped}, true, exit.OK},
		"warning":               {[]diagnosis.State{diagnosis.OK, diagnosis.Warning}, false, exit.OK},
		"warning, strict":       {[]diagnosis.State{diagnosis.OK, diagnosis.Warning}, true, exit.Findings},
		"unknown":               {[]diagnosis.State{diagnosis.Unknown, diagnosis.Warning}, false, exit.Undetermined},
		"failed before unknown": {[]diagnosis.State{diagnosis.Unknown, diagnosis.Failed}, false, exit.Findings},
	} {
		var results []finished
		for _, state := range c.states {
			results = append(results, finished{result: diagnosis.Result{State: state}})
		}
		run := command{strict: c.strict}
		if got := exit.CodeOf(run.verdict(results)); got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
		if accepts := run.accepts(results); accepts != (c.want == exit.OK) {
			t.Errorf("%s: --wait ends: %t", name, accepts)
		}
	}
}

func TestCommand_MistakesAreToldTogether(t *testing.T) {
	got := commandtest.Run(t, commandtest.Terminal{}, newCommand, "--node=maybe", "--wait=-1s", "--etcd-ca-file=x", "-o", "xml", "--cluster=a/b")
	if got.Code != exit.Usage || got.Stdout != "" {
		t.Errorf("%s", got)
	}
	for _, flag := range []string{"--node", "--wait", "--etcd-endpoints", "--output", "--cluster"} {
		if !strings.Contains(got.Stderr, flag) {
			t.Errorf("the mistake about %s is not told: %s", flag, got)
		}
	}
	if got := commandtest.Run(t, commandtest.Terminal{}, newCommand, "now"); got.Code != exit.Usage {
		t.Errorf("with an argument: %s", got)
	}
	if got := commandtest.Run(t, commandtest.Terminal{}, newCommand, "--pre"); got.Code != exit.Usage || !strings.Contains(got.Stderr, "KUBECONFIG") {
		t.Errorf("without a kubeconfig: %s", got)
	}
}

// Without an answer of the gateway, one check fails and names the cause; no other one guesses.
func TestCommand_GatewayThatRefusesIsTheOnlyFailure(t *testing.T) {
	got := commandtest.Run(t, commandtest.Terminal{}, newCommand, "--server=127.0.0.1:1", "--timeout=5s", "-o", "short")
	if got.Code != exit.Findings || strings.Count(got.Stdout, "×") != 1 || !strings.Contains(got.Stdout, "× gateway") ||
		!strings.Contains(got.Stdout, "connection refused") || !strings.Contains(got.Stdout, "give --kubeconfig or --context") {
		t.Errorf("%s", got)
	}
}

func TestCommand_WaitEndsWithTheLastResults(t *testing.T) {
	began := time.Now()
	got := commandtest.Run(t, commandtest.Terminal{}, newCommand, "--server=127.0.0.1:1", "--timeout=5s", "--wait=1500ms", "-o", "short")
	if got.Code != exit.Findings || !strings.Contains(got.Stdout, "× gateway") || !strings.Contains(got.Stderr, "waiting for × gateway") {
		t.Errorf("%s", got)
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("ended after %s", took)
	}
	until := commandtest.Terminal{Until: []string{"waiting for"}}
	if got := commandtest.Run(t, until, newCommand, "--server=127.0.0.1:1", "--wait=1h"); got.Code != exit.Interrupted || got.Stdout != "" {
		t.Errorf("interrupted: %s", got)
	}
}

// docs/checks.md has the section of each check, and no other.
func TestDocument_IsInTheDocs(t *testing.T) {
	const begin, end = "<!-- generated: go test ./cmd/trivet/internal/check -run Document -args -update -->\n", "<!-- end -->\n"
	path := filepath.Join("..", "..", "..", "..", "docs", "checks.md")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no generated part", path)
	}
	want := before + begin + "\n" + diagnosis.Document() + "\n" + end + after
	if want == string(content) {
		return
	}
	if !commandtest.Updating() {
		t.Errorf("%s differs from the catalogue; `go test ./cmd/trivet/internal/check -run Document -args -update` writes it", path)
		return
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
