package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
	"github.com/trivet-dev/trivet/test/robustness/internal/oracle"
	"github.com/trivet-dev/trivet/test/robustness/internal/report"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// takeover is the time from a crash of a leader until the next one works: its session ends, and the
// next owner claims the shard.
const takeover = term.DefaultTTL + time.Second

// bounds are the promised times. A rule whose subject needs a leader has the time of a takeover in
// it.
func bounds() oracle.Bounds {
	return oracle.Bounds{
		// A loaded machine with two cores runs a control plane and all services.
		Margin: 4 * time.Second,
		// A leader knows a silence two seconds late at most, writes it within three, and is cut off
		// from etcd for a TTL before its term ends. In the last second of that it has stopped, and
		// a mark needs a pass and two requests.
		Observation: oracle.Observation{
			Grace: nodeGrace, Least: 2*beatInterval + reconnectTime, Quiet: beatInterval + reconnectTime,
			Unstored: 5*time.Second + term.DefaultTTL, Stopped: term.DefaultTTL/5 + time.Second,
		},
		Promised: map[string]time.Duration{
			"holder":        takeover,
			"dead":          nodeGrace + 2*time.Second,
			"lease":         takeover + 2*beatInterval,
			"present":       takeover + 2*time.Second,
			"absent":        takeover + 2*time.Second,
			"duplicate":     takeover + 2*time.Second,
			"simple-reader": takeover + 2*time.Second,
			"published":     takeover,
			"unpublished":   takeover + 4*time.Second,
			"unallocated":   takeover + 2*time.Second,
			"silence":       2 * time.Second,
			"told":          2 * time.Second,
			"call":          takeover,
		},
	}
}

// reconnectTime is that of leasesvc: the longest time, beyond an interval, in which an agent finds
// another server.
const reconnectTime = 5 * time.Second

const (
	// calm is the time before each step in which the traffic is counted, and briefCalm that of the
	// short form. A step waits for traffic for at most longestCalm.
	calm        = 6 * time.Second
	briefCalm   = 3 * time.Second
	longestCalm = time.Minute
	// After a step, the run waits until the dead nodes are marked and all shards are held. With the
	// calm of the next step, leastSettle is as long as the bound of most rules with its margin.
	leastSettle = 6 * time.Second
	mostSettle  = takeover + nodeGrace + 4*time.Second
)

// floor is far below the traffic of a loaded machine in a time of calm.
func (w *world) floor() history.Floor {
	least := history.Floor{Over: w.calm, Renewals: 2, Answers: 2}
	if w.profile.pods() {
		least.Pods = 3
	}
	if w.profile.services() {
		least.Services = 2
	}
	return least
}

// TestEachFault is the short form: each fault of the table that is not Long once, two at a time in
// different services, each of its least duration; or the third of them that runs.
func TestEachFault(t *testing.T) {
	if *seeds > 0 || *kept != "" || testing.Short() {
		t.Skip("another test of this package was asked for, or -short")
	}
	entries, command := slices.DeleteFunc(schedule.Table(), func(e schedule.Entry) bool { return e.Long }), ""
	if third := testkit.Third(t); third != 0 {
		entries, command = schedule.Part(entries, third-1, 3), fmt.Sprintf("TRIVET_THIRD=%d ", third)
	}
	runSchedule(t, plan{
		seed: 1, name: "brief", calm: briefCalm, profile: mixed, command: command + "go test -count=1 -run TestEachFault ./test/robustness",
		steps: schedule.Draw(1, schedule.Setting{Entries: entries, Pairs: true, Brief: true}),
	})
}

// plan says what to run.
type plan struct {
	seed    uint64
	name    string
	steps   []schedule.Step
	calm    time.Duration
	profile traffic
	// command runs it again.
	command string
}

// TestSchedules runs the schedules of the seeds. No run has a violation, and every step has traffic
// before its faults.
func TestSchedules(t *testing.T) {
	if *seeds == 0 {
		t.Skip("-robustness.seeds=0; `make robustness` runs the schedules")
	}
	entries, err := schedule.Select(*names)
	if err != nil {
		t.Fatal(err)
	}
	var runs []report.Run
	var all []savedRun
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		p := plan{
			seed: seed, name: fmt.Sprintf("seed=%d", seed), calm: calm, profile: profileOf(seed), command: reproduce(seed),
			steps: schedule.Draw(seed, schedule.Setting{Entries: entries, Steps: *each, Pairs: *pairs}),
		}
		run := runSchedule(t, p)
		if len(run.Report.Violations) > 0 && *shrink > 0 {
			run.Shrunk = shrunk(t, p)
		}
		runs = append(runs, run)
		ended := endedNow(run)
		all = append(all, ended)
		save(t, ended)
		if kept := filepath.Join(*keep, p.name); *keep != "" && exists(filepath.Join(kept, recordName)) {
			writeJSON(t, filepath.Join(kept, runName), ended)
		}
	}
	t.Logf("\n%s\nViolations:\n\n%s\nUndecided:\n\n%s", report.Table(runs), report.Violations(runs), report.Undecided(runs))
	publish(t, all)
}

// shrunk runs shorter schedules while they fail, and describes the shortest one.
func shrunk(t *testing.T, p plan) string {
	tries := 0
	shortest := schedule.Shrink(p.steps, *shrink, func(tried []schedule.Step) bool {
		tries++
		shorter := p
		shorter.name, shorter.steps = fmt.Sprintf("seed=%d,try=%d", p.seed, tries), tried
		return len(runSchedule(t, shorter).Report.Violations) > 0
	})
	texts := make([]string, len(shortest))
	for i, step := range shortest {
		texts[i] = step.String()
	}
	return strings.Join(texts, "; then ")
}

// runSchedule runs a schedule in a world of its own. It is Discarded if the world did not start, or
// the test itself had a problem.
func runSchedule(t *testing.T, p plan) report.Run {
	run := report.Run{Seed: p.seed, Command: p.command, Discarded: "it did not start, or its judge failed"}
	t.Run(p.name, func(t *testing.T) {
		t.Logf("reproduce with: %s", p.command)
		w := newWorld(t, p)
		w.record.Begin = w.now()
		used := newUsage()
		t.Logf("all services work after %v; traffic %v", w.now().Round(time.Millisecond), p.profile)
		for number, step := range p.steps {
			t.Logf("%v: step %d: %v", w.now().Round(time.Millisecond), number+1, step)
			w.runStep(number, step)
		}
		cpu := used.cores()
		h := w.finish()
		w.keepRecord(h)
		judged := judge(t, p, h, w.floor())
		judged.World, judged.Cores, judged.Took = describe(p.profile), cpu, h.End
		judged.Busy = busy(h)
		t.Logf("the world used %.2f cores, and waited for a processor in %.0f %% of the time; %d changes of the traffic failed", cpu, 100*judged.Busy, w.missed.Load())
		checkBites(t, h, p.profile)
		checkDelays(t, h, judged.Report)
		run = judged
		if err := errors.Join(w.problems...); err != nil {
			run.Discarded = err.Error()
		}
	})
	return run
}

// runStep injects a step into the traffic, beside which one node of each kind dies.
func (w *world) runStep(number int, step schedule.Step) {
	w.Helper()
	ctx := context.Background()
	testkit.Pause(ctx, w.calm)
	w.awaitTraffic()
	crashed := w.nodes.oneOfEachKind(number)
	for _, n := range crashed {
		w.nodes.crash(n)
	}
	if err := w.inject(number, step); err != nil {
		w.note(fmt.Errorf("inject %v: %w", step, err))
	}
	w.settle(crashed)
	for _, n := range crashed {
		w.nodes.restart(w.recorder.context, n)
	}
}

// awaitTraffic waits until there is twice the traffic of the floor. A step without is judged by
// what there was.
func (w *world) awaitTraffic() {
	ctx, cancel := context.WithTimeout(context.Background(), longestCalm)
	defer cancel()
	twice := w.floor()
	twice.Pods, twice.Services, twice.Renewals, twice.Answers = 2*twice.Pods, 2*twice.Services, 2*twice.Renewals, 2*twice.Answers
	for ctx.Err() == nil {
		w.mu.Lock()
		below := w.record.TrafficBelow(twice, w.now())
		w.mu.Unlock()
		if len(below) == 0 {
			return
		}
		testkit.Pause(ctx, 100*time.Millisecond)
	}
}

// settle waits for the end of a step. What is not as it should be by then is for the oracles.
func (w *world) settle(crashed []*simulatedNode) {
	ctx, cancel := context.WithTimeout(context.Background(), mostSettle)
	defer cancel()
	testkit.Pause(ctx, leastSettle)
	for ctx.Err() == nil && !w.settled(crashed) {
		testkit.Pause(ctx, 100*time.Millisecond)
	}
}

func (w *world) settled(crashed []*simulatedNode) bool {
	for service, shards := range w.shards {
		held := 0
		for _, n := range w.recorder.holders(service) {
			held += n
		}
		if held < shards {
			return false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(crashed, func(n *simulatedNode) bool { return w.recorder.ready[n.name] == string(corev1.ConditionTrue) })
}

// finish stops the traffic and returns the record once it is complete.
func (w *world) finish() history.History {
	w.Helper()
	w.measureMemory()
	w.mu.Lock()
	w.record.End = w.now()
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	marker, err := w.etcd.Put(ctx, markerKey, "")
	if err != nil {
		w.Fatal(err)
	}
	w.await(requestTimeout, func(context.Context) error {
		if seen := w.recorder.lastRevision(); seen < marker.Header.Revision {
			return fmt.Errorf("the record is at revision %d of %d", seen, marker.Header.Revision)
		}
		return nil
	})
	for _, s := range w.slots {
		w.recordEnd(s, s.Stop())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) > 0 {
		w.Errorf("the run shows nothing: %v", errors.Join(w.problems...))
	}
	w.nameLeaders()
	h := w.record
	h.Shards, h.Grace = w.shards, nodeGrace
	h.Acts = append(slices.Clone(h.Acts), w.actsOfSlices()...)
	return h
}

// recordEnd records how a replica ended: by itself or with an error is a violation, and so is a
// crash that its log tells of, after which a fault had replaced it.
func (w *world) recordEnd(s *slot, err error) {
	w.Helper()
	failed := 0
	if err != nil {
		failed = 1
		w.Log(err)
	}
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		w.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, count := range map[string]int{
		"processes that ended before they were asked to, or with an error": failed,
		"crashes in the log": crashesIn(text),
	} {
		w.record.Levels = append(w.record.Levels, history.Level{At: w.record.End, Service: s.Service, Process: s.Name, What: what, Value: float64(count)})
	}
}

// crashesIn counts the lines with which Go's runtime begins the report of a crash.
func crashesIn(log []byte) int {
	count := 0
	for line := range bytes.Lines(log) {
		if bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) || bytes.HasPrefix(line, []byte("WARNING: DATA RACE")) {
			count++
		}
	}
	return count
}

func TestCrashesIn_CountsReportsOfTheRuntime(t *testing.T) {
	log := "time=2026-11-23T18:00:00Z level=INFO msg=\"panic: no\"\npanic: runtime error\n\ngoroutine 1 [running]:\nfatal error: all goroutines are asleep\n"
	if got := crashesIn([]byte(log)); got != 2 {
		t.Errorf("%d crashes, want 2", got)
	}
}

// recordName is the name of the record among the logs of a run.
const recordName = "record.json"

// runName is the name of what is known of the run, beside its record.
const runName = "run.json"

// keepRecord writes the record beside the logs of the processes.
func (w *world) keepRecord(h history.History) {
	w.Helper()
	writeJSON(w.T, filepath.Join(w.dir, recordName), h)
}

func writeJSON(t *testing.T, path string, what any) {
	t.Helper()
	text, err := json.Marshal(what)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

func readJSON[T any](t *testing.T, path string) (what T) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &what)
	}
	if err != nil {
		t.Fatal(err)
	}
	return what
}

// TestRecord judges all records that earlier runs have kept in a directory. With -robustness.out it
// writes the page of them.
func TestRecord(t *testing.T) {
	if *kept == "" {
		t.Skip("no -robustness.record")
	}
	var all []savedRun
	err := filepath.WalkDir(*kept, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() != recordName {
			return err
		}
		s, h := savedRun{Ended: time.Now()}, readJSON[history.History](t, path)
		if known := filepath.Join(filepath.Dir(path), runName); exists(known) {
			s = readJSON[savedRun](t, known)
		}
		asInTheTable(h.Windows)
		s.Run.Report = oracle.Check(h, bounds())
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			logReport(t, s.Run)
			checkBites(t, h, profileOf(s.Run.Seed))
			checkDelays(t, h, s.Run.Report)
		})
		all = append(all, s)
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d records in %s, error %v", len(all), *kept, err)
	}
	slices.SortStableFunc(all, func(a, b savedRun) int { return a.Ended.Compare(b.Ended) })
	write(t, all)
}

// asInTheTable lets the faults of a kept record excuse what the table says now.
func asInTheTable(windows []history.Window) {
	for _, entry := range schedule.Table() {
		for i := range windows {
			if windows[i].Fault == string(entry.Kind) {
				entry.Judge(&windows[i])
			}
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkBites spoils the record for each rule. A record that no spoiler can spoil, or in which the
// oracle does not notice it, could not have shown a violation. It is no failure in a run of one
// step, which is shorter than some bounds.
func checkBites(t *testing.T, h history.History, profile traffic) {
	t.Helper()
	for rule, spoil := range oracle.Spoilers() {
		complain := t.Errorf
		if h.StepAt(h.End) < 1 {
			complain = t.Logf
		}
		spoiled := h.Clone()
		switch {
		case rule == "present" && !profile.pods(): // No Pod changes.
		case !spoil(&spoiled):
			complain("the record has nothing that breaks the rule %s", rule)
		case !notices(oracle.Check(spoiled, bounds(), rule), rule):
			complain("the record was spoiled, and the rule %s did not notice it", rule)
		}
	}
}

// checkDelays adds to the record, for each rule with a bound, what is not as promised for a second
// longer than allowed, or for a second less. The first one must be a violation more than the second
// one, which must be none. A rule for which the machine left no time could have shown only what is
// undecided.
func checkDelays(t *testing.T, h history.History, found oracle.Report) {
	t.Helper()
	violationsOf := func(rule string, of oracle.Report) (count int) {
		for _, v := range of.Violations {
			if v.Rule == rule {
				count++
			}
		}
		return count
	}
	allowed := oracle.JustAllowed(bounds())
	for rule, lengthen := range oracle.TooLong(bounds()) {
		long, short := h.Clone(), h.Clone()
		if !lengthen(&long) || !allowed[rule](&short) {
			t.Logf("the faults and the machine left no time in which the rule %s shows a violation", rule)
			continue
		}
		tooLong, justAllowed := violationsOf(rule, oracle.Check(long, bounds(), rule)), violationsOf(rule, oracle.Check(short, bounds(), rule))
		if tooLong <= justAllowed {
			t.Errorf("a breach of the rule %s that is a second longer than allowed is no violation", rule)
		}
		if justAllowed > violationsOf(rule, found) {
			t.Errorf("a second less than the rule %s allows is a violation", rule)
		}
	}
}

// notices says whether a report names a breach of a rule. On a busy machine it may be undecided.
func notices(report oracle.Report, rule string) bool {
	return slices.ContainsFunc(slices.Concat(report.Violations, report.Undecided), func(v oracle.Violation) bool { return v.Rule == rule })
}

// busy returns the share of the time in which a process of the world waited for a processor.
func busy(h history.History) float64 {
	return h.Stalled(h.Begin, h.End).Seconds() / (h.End - h.Begin).Seconds()
}

// injectedText describes an injected fault.
func injectedText(w history.Window) string {
	text := w.Fault
	if w.Service != "" {
		text += " (" + w.Service + ")"
	}
	if w.To > w.From {
		text += fmt.Sprintf(" for %.1f s", (w.To - w.From).Seconds())
	}
	return text
}

// logReport logs what the oracle found, and fails the test for each violation.
func logReport(t *testing.T, run report.Run) {
	t.Helper()
	if len(run.Report.Violations) > 0 {
		t.Errorf("%d violations:\n%s", len(run.Report.Violations), report.Violations([]report.Run{run}))
	}
	for _, v := range run.Report.Undecided {
		t.Logf("undecided: %v", v)
	}
	for _, m := range run.Report.Measures {
		t.Logf("step %d: %s %s: %v of %v (the machine stalled for %v): %s", m.Step+1, m.Service, m.Rule, m.Took.Round(time.Millisecond), m.Bound,
			m.Stalled.Round(time.Millisecond), m.What)
	}
}

// judge fails the test for each violation and for each step below the floor.
func judge(t *testing.T, p plan, h history.History, floor history.Floor) report.Run {
	t.Helper()
	run := report.Run{Seed: p.seed, Command: p.command, Report: oracle.Check(h, bounds())}
	steps := 0
	for _, w := range h.Windows {
		if w.Fault != "" {
			steps = max(steps, w.Step+1)
		}
	}
	for number := range steps {
		step := report.Step{Faults: h.FaultsOf(number), TooQuiet: h.BelowFloor(number, floor)}
		for _, w := range h.Windows {
			if w.Fault == "" || w.Step != number {
				continue
			}
			step.Injected = append(step.Injected, injectedText(w))
			if w.Service != "" && !slices.Contains(step.Services, w.Service) {
				step.Services = append(step.Services, w.Service)
			}
		}
		slices.Sort(step.Services)
		run.Steps = append(run.Steps, step)
		for _, why := range step.TooQuiet {
			t.Errorf("step %d does not count: %s", number+1, why)
		}
	}
	logReport(t, run)
	stalls := 0
	for _, w := range h.Windows {
		if w.Fault == "" {
			stalls++
		}
	}
	t.Logf("judged: %v; %d stalls of the machine", run.Report.Traffic, stalls)
	return run
}
