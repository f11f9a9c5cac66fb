package check

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// report is the document of all results.
type report struct {
	// Success means exit code 0.
	Success bool `json:"success"`
	// Worst is the state that gives the exit code.
	Worst  diagnosis.State         `json:"worst"`
	Counts map[diagnosis.State]int `json:"counts"`
	Checks []reportedCheck         `json:"checks"`
}

type reportedCheck struct {
	ID       string          `json:"id"`
	Category string          `json:"category"`
	State    diagnosis.State `json:"state"`
	Found    string          `json:"found"`
	Hint     string          `json:"hint,omitempty"`
	Page     string          `json:"page"`
}

func (c *command) print(results []finished) error {
	return c.Print(c.reportOf(results), func() error {
		text := draw(results, c.Colors(), c.Output == "short")
		if _, err := io.WriteString(c.streams.Out, text); err != nil {
			return err
		}
		var counts []string
		outcome := summarize(results)
		for _, state := range diagnosis.States() {
			if outcome.Counts[state] > 0 {
				counts = append(counts, fmt.Sprintf("%d %s", outcome.Counts[state], state))
			}
		}
		c.Note(fmt.Sprintf("%s: %s", printer.Count(len(results), "check"), strings.Join(counts, ", ")))
		if c.accepts(results) {
			c.Note("next: " + c.next())
		}
		return nil
	})
}

// next returns what to do after a success.
func (c *command) next() string {
	if c.pre {
		return "install as docs/install.md says, then run `trivet check --wait 5m`"
	}
	return "trivet status"
}

func (c *command) reportOf(results []finished) report {
	outcome := summarize(results)
	r := report{Success: c.verdict(results) == nil, Worst: outcome.Worst(), Counts: outcome.Counts}
	for _, f := range results {
		r.Checks = append(r.Checks, reportedCheck{
			ID: f.check.ID, Category: f.check.Category, State: f.result.State, Found: f.result.Found, Hint: hintOf(f), Page: diagnosis.Page(f.check.ID),
		})
	}
	return r
}

// draw returns the lines of results. The short form has the ones that need attention only.
func draw(results []finished, colors printer.Colors, short bool) string {
	styles := map[diagnosis.State]printer.Style{
		diagnosis.OK: printer.Success, diagnosis.Warning: printer.Warning, diagnosis.Unknown: printer.Warning,
		diagnosis.Failed: printer.Failure, diagnosis.Skipped: printer.Dim,
	}
	var text strings.Builder
	category := ""
	for _, f := range results {
		if short && hintOf(f) == "" {
			continue
		}
		if f.check.Category != category && !short {
			text.WriteString(strings.TrimPrefix("\n", map[bool]string{true: "\n"}[category == ""]))
			category = f.check.Category
			text.WriteString(colors.Apply(printer.Bold, category) + "\n")
		}
		fmt.Fprintf(&text, "%s %s: %s\n", colors.Apply(styles[f.result.State], f.result.State.Mark()), f.check.ID, printer.Sanitize(f.result.Found))
		if hint := hintOf(f); hint != "" && !short {
			fmt.Fprintf(&text, "  → %s.\n    %s\n", printer.Sanitize(hint), colors.Apply(printer.Dim, diagnosis.Page(f.check.ID)))
		}
	}
	return text.String()
}

// hintOf returns what to do; empty if nothing needs attention.
func hintOf(f finished) string {
	if f.result.State == diagnosis.OK || f.result.State == diagnosis.Skipped {
		return ""
	}
	action := f.check.Action
	switch {
	case f.result.State != diagnosis.Unknown:
	case strings.Contains(f.result.Found, " is forbidden: "): // as kube-apiserver says it
		action = "Give yourself the role trivet-checker of docs/checks.md, which has all rights of this command"
	default: // nothing says that the action is needed
		action = "Remove the cause, then run the check again"
	}
	return strings.TrimSuffix(cmp.Or(f.result.Hint, action), ".")
}

// waitingFor says which checks need attention before the next round.
func waitingFor(results []finished) string {
	var ids []string
	for _, f := range results {
		if f.result.State == diagnosis.Failed || f.result.State == diagnosis.Unknown || f.result.State == diagnosis.Warning {
			ids = append(ids, f.result.State.Mark()+" "+f.check.ID)
		}
	}
	return "waiting for " + strings.Join(ids, ", ")
}
