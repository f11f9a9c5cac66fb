package robustness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/report"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// savedRun is one line of the file of -robustness.saved.
type savedRun struct {
	Commit, Command string
	Ended           time.Time
	Run             report.Run
}

// save adds a run to the file of -robustness.saved. Tests that run at the same time may add to one
// file.
func save(t *testing.T, run savedRun) {
	t.Helper()
	if *saved == "" {
		return
	}
	line, err := json.Marshal(run)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(*saved), 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(*saved, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.Write(append(line, '\n'))
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// endedNow returns a run of this commit that has just ended.
func endedNow(run report.Run) savedRun {
	return savedRun{Commit: commit(), Command: command(), Ended: time.Now(), Run: run}
}

// publish writes the report: of the saved runs of this commit, or of these runs if none are saved.
func publish(t *testing.T, all []savedRun) {
	t.Helper()
	if *out == "" {
		return
	}
	if *saved != "" {
		text, err := os.ReadFile(*saved)
		if err != nil {
			t.Fatal(err)
		}
		if all, err = savedOf(text, commit()); err != nil {
			t.Fatal(err)
		}
	}
	write(t, all)
}

// write writes the report of some runs.
func write(t *testing.T, all []savedRun) {
	t.Helper()
	if *out == "" {
		return
	}
	header := report.Header{
		Commit: commit(), Beside: mostAtOnce(all),
		Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
		Times: fmt.Sprintf("beats every %v, and a node grace period of %v: a fifth of the defaults. Leases of %v, renewed after a quarter of that",
			beatInterval, nodeGrace, leaseDuration),
	}
	var runs []report.Run
	var pieces []string
	for _, s := range all {
		runs, pieces = append(runs, s.Run), append(pieces, s.Command)
	}
	header.Commands = joined(pieces)
	if len(all) > 0 {
		header.First, header.Last = all[0].Ended, all[len(all)-1].Ended
		var of []string
		for _, s := range all {
			if s.Commit != "" && !slices.Contains(of, s.Commit) {
				of = append(of, s.Commit)
			}
		}
		if !slices.Equal(of, []string{header.Commit}) {
			header.Commit = fmt.Sprintf("%s; the records were judged by the oracle of %s", strings.Join(of, ", "), header.Commit)
		}
	}
	if err := os.WriteFile(*out, []byte(report.Document(header, schedule.Table(), bounds(), runs)), 0o644); err != nil {
		t.Error(err)
	}
}

// mostAtOnce returns how many runs took place at the same time, at most.
func mostAtOnce(all []savedRun) int {
	most := 0
	for _, s := range all {
		beside := 0
		for _, other := range all {
			if !other.Ended.Before(s.Ended) && other.Ended.Add(-other.Run.Took).Before(s.Ended) {
				beside++
			}
		}
		most = max(most, beside)
	}
	return most
}

// joined returns one command for pieces whose seeds follow each other.
func joined(pieces []string) []string {
	seeds := map[string][]int{} // by what follows in the command
	var order []string
	for _, piece := range pieces {
		var from, count int
		if _, err := fmt.Sscanf(piece, "make robustness FIRST=%d SEEDS=%d", &from, &count); err != nil {
			order, seeds[piece] = append(order, piece), nil
			continue
		}
		_, rest, _ := strings.Cut(piece, fmt.Sprintf("SEEDS=%d", count))
		if seeds[rest] == nil {
			order = append(order, rest)
		}
		for n := range count {
			seeds[rest] = append(seeds[rest], from+n)
		}
	}
	var out []string
	for _, rest := range order {
		all := slices.Compact(slices.Sorted(slices.Values(seeds[rest])))
		if len(all) == 0 {
			out = append(out, rest)
		}
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n] == all[0]+n {
				n++
			}
			out = append(out, fmt.Sprintf("make robustness FIRST=%d SEEDS=%d%s", all[0], n, rest))
			all = all[n:]
		}
	}
	return out
}

func TestJoined_PiecesWhoseSeedsFollowAreOneCommand(t *testing.T) {
	pieces := []string{
		"make robustness FIRST=3 SEEDS=1 EACH=0", "make robustness FIRST=1 SEEDS=2 EACH=0", "make robustness FIRST=101 SEEDS=1 EACH=20 PAIRS=1",
		"make robustness FIRST=6 SEEDS=1 EACH=0", "make robustness FIRST=6 SEEDS=1 EACH=0", "make robustness-restore FIRST=1",
	}
	want := []string{
		"make robustness FIRST=1 SEEDS=3 EACH=0", "make robustness FIRST=6 SEEDS=1 EACH=0", "make robustness FIRST=101 SEEDS=1 EACH=20 PAIRS=1",
		"make robustness-restore FIRST=1",
	}
	if got := joined(pieces); !slices.Equal(got, want) {
		t.Errorf("joined = %q, want %q", got, want)
	}
}

func TestMostAtOnce_CountsOverlappingRuns(t *testing.T) {
	at := func(begin, end int) savedRun {
		s := savedRun{Ended: time.Unix(int64(end), 0)}
		s.Run.Took = time.Duration(end-begin) * time.Second
		return s
	}
	if got := mostAtOnce([]savedRun{at(0, 10), at(10, 20), at(12, 25), at(30, 40)}); got != 2 {
		t.Errorf("%d at once, want 2", got)
	}
}

// savedOf returns the saved runs of a commit, in order. A run that is repeated replaces none.
func savedOf(text []byte, commit string) ([]savedRun, error) {
	var all []savedRun
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var next savedRun
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return nil, fmt.Errorf("read the saved runs: %w", err)
		}
		if next.Commit != commit {
			continue
		}
		all = append(all, next)
	}
	return all, lines.Err()
}

// TestSavedOf_PiecesAddUp holds what a run of hours in pieces needs.
func TestSavedOf_PiecesAddUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "runs.jsonl")
	before := *saved
	*saved = path
	defer func() { *saved = before }()
	for _, command := range []string{"FIRST=1", "FIRST=2", "FIRST=1"} {
		save(t, savedRun{Commit: commit(), Run: report.Run{Command: command, Took: time.Minute}})
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := savedOf(text, commit())
	if err != nil || len(all) != 3 || all[0].Run.Command != "FIRST=1" || all[2].Run.Command != "FIRST=1" {
		t.Errorf("saved runs are %+v, %v; want all three", all, err)
	}
	if all, err := savedOf(text, "another"); err != nil || len(all) != 0 {
		t.Errorf("runs of another commit: %v, %v", all, err)
	}
	if _, err := savedOf([]byte("{"), "another"); err == nil {
		t.Error("half a line is no error")
	}
}

// commit names the code that is tested. Pages may differ, because the test writes one.
func commit() string {
	head, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(head))
	if changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/docs").Output(); err != nil || len(changed) > 0 {
		name += " with changes"
	}
	return name
}

// command is the command of this piece.
func command() string {
	return fmt.Sprintf("make robustness FIRST=%d SEEDS=%d%s", *first, *seeds, settings())
}

// reproduce returns the command that runs the schedule of a seed again.
func reproduce(seed uint64) string {
	return fmt.Sprintf("make robustness FIRST=%d SEEDS=1%s", seed, settings())
}

// settings are the variables of make that both need.
func settings() string {
	text := fmt.Sprintf(" EACH=%d", *each)
	if *names != "" {
		text += fmt.Sprintf(" FAULTS=%q", *names)
	}
	if *pairs {
		text += " PAIRS=1"
	}
	if *profileName != "" {
		text += " PROFILE=" + *profileName
	}
	if *replicas == 3 && *agents == 200 && *kubelets == 50 {
		return text + " FULL=1"
	}
	return text
}

// describe describes the world.
func describe(profile traffic) string {
	return fmt.Sprintf("%d replicas of each service, 2 kube-apiservers, %d members of etcd, %d nodes with an agent, %d whose kubelet renews its Lease, traffic %q",
		*replicas, etcdMembers, *agents, *kubelets, profile)
}
