package allocationcontroller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// problemLines are the problems as "code severity resource: message".
func problemLines(c *Controller) []string {
	var lines []string
	for _, problem := range c.Problems() {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", problem.GetCode(), strings.TrimPrefix(problem.GetSeverity().String(), "SEVERITY_"),
			problem.GetResource(), problem.GetMessage()))
	}
	return lines
}

func TestProblems_OfFindingsAreCountedByCodeTheWorstFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for port := range int32(5) {
			w.addService(fmt.Sprint("s", port), "None", 30001+port)
		}
		w.putBits(30009)
		r := w.lead(t, w.config())
		if problems := r.Problems(); len(problems) > 0 {
			t.Errorf("problems before a finding has settled: %v", problems)
		}
		time.Sleep(settleTime)
		open := "FINDINGS_OPEN ERROR findings/not-allocated.node-ports.30001: 5 findings NOT_ALLOCATED are open: 30001, 30002, 30003 and 2 more"
		if diff := cmp.Diff([]string{open}, problemLines(r.Controller)); diff != "" {
			t.Errorf("problems while the leak is pending (-want +got):\n%s", diff)
		}
		time.Sleep(2 * time.Minute)
		want := []string{open, "FINDINGS_OPEN WARNING findings/leaked.node-ports.30009: port 30009 is allocated in range 30000-32767, and no service uses it"}
		if diff := cmp.Diff(want, problemLines(r.Controller)); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
		r.end()
		if problems := r.Problems(); problems != nil {
			t.Errorf("problems after the term: %v", problems)
		}
	})
}

func TestProblems_FailedRepairIsOneWhileItsFindingIsOpen(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				return errors.New("forbidden")
			}
			return nil
		})
		repair, err := r.apply(r.plan(t, missingAddress))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(settleTime)
		want := "REPAIR_FAILED WARNING repairs/" + repair.ID + ": the repair of " + missingAddress + " has failed"
		if lines := problemLines(r.Controller); len(lines) == 0 || lines[len(lines)-1] != want {
			t.Errorf("problems %q, want the last one %q", lines, want)
		}
		w.onWrite(nil)
		w.addAddress("10.0.0.1", "missing")
		time.Sleep(settleTime)
		for _, line := range problemLines(r.Controller) {
			if strings.Contains(line, "REPAIR_FAILED") {
				t.Errorf("problem %q after the finding has ended", line)
			}
		}
	})
}

func TestProblems_AuditThatCannotRunIsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("affected", "None", 30002)
		w.readErr = rangestore.ErrUnavailable
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		if lines := problemLines(r.Controller); len(lines) != 0 {
			t.Errorf("problems %q after a short failure, want none", lines)
		}
		time.Sleep(time.Minute)
		if lines := problemLines(r.Controller); len(lines) != 1 || !strings.HasPrefix(lines[0], "AUDIT_FAILED UNKNOWN : the audit of ClusterIPs and node ports fails:") {
			t.Errorf("problems %q, want the failing audit", lines)
		}
	})
}

func TestProblems_StoreThatCannotBeComparedIsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.foreign = "it is another cluster's"
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		want := []string{"AUDIT_FAILED UNKNOWN : the allocations in node-ports cannot be compared: it is another cluster's"}
		if diff := cmp.Diff(want, problemLines(r.Controller)); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	})
}

func TestSeverityOf_EveryCodeHasOne(t *testing.T) {
	t.Parallel()
	for _, code := range allocation.Codes() {
		if severity := severityOf(code); severity == 0 {
			t.Errorf("%s has no severity", code)
		}
	}
}
