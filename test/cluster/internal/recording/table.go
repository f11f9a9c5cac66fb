package recording

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Print writes the comparison as Markdown: what no allowance covers, what an allowance covers by
// reason, and the times of the changes that both recordings have.
func (c Comparison) Print(to io.Writer) error {
	p := &printer{}
	p.line("| step | upstream | ours |")
	p.line("|---|---|---|")
	for _, step := range c.Upstream.Steps {
		p.line("| %s | %s, %d changes | %s, %d changes |", step.Name,
			seconds(step.Duration), count(c.Upstream, step.Name), seconds(durationOf(c.Ours, step.Name)), count(c.Ours, step.Name))
	}
	p.line("")
	open := slices.DeleteFunc(slices.Clone(c.Differences), func(d Difference) bool { return d.Because != "" })
	p.line("%d changes are the same. %d differences are intended, %d are not.", len(c.Pairs), len(c.Differences)-len(open), len(open))
	if len(open) > 0 {
		p.line("")
		p.line("### Differences without a reason")
		p.line("")
		p.differences(open, len(open))
	}
	if len(c.Unused) > 0 {
		p.line("")
		p.line("### Allowances without a difference")
		p.line("")
		for _, a := range c.Unused {
			p.line("- %s", escape(a.String()))
		}
	}
	p.line("")
	p.line("### Intended differences")
	for _, because := range reasons(c.Differences) {
		p.line("")
		p.line("%s", because)
		p.line("")
		p.differences(slices.DeleteFunc(slices.Clone(c.Differences), func(d Difference) bool { return d.Because != because }), shownOfReason)
	}
	p.line("")
	p.line("### Times of the same changes")
	p.line("")
	p.times(c.Pairs)
	_, err := io.WriteString(to, p.String())
	return err
}

// shownOfReason limits the differences that are shown of one reason.
const shownOfReason = 12

type printer struct{ strings.Builder }

func (p *printer) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// differences shows so many at most.
func (p *printer) differences(all []Difference, limit int) {
	p.line("| step | difference | what | upstream | ours |")
	p.line("|---|---|---|---|---|")
	more := len(all) - limit
	for _, d := range all[:min(len(all), limit)] {
		p.line("| %s | %s | %s %s: %s | %s | %s |", d.Step, d.Difference, d.Kind, escape(d.Object), escape(d.Field),
			cell(d.Upstream, d.UpstreamAfter), cell(d.Ours, d.OursAfter))
	}
	if more > 0 {
		p.line("| | | %d more with this reason | | |", more)
	}
}

// times shows conditions and taints of Nodes, endpoints, Leases and evictions, except for what
// comes within a second on both sides.
func (p *printer) times(pairs []Pair) {
	p.line("| step | what | value | upstream | ours |")
	p.line("|---|---|---|---|---|")
	for _, pair := range pairs {
		u, o := pair.Upstream, pair.Ours
		if !timed(u) || max(u.After, o.After) < time.Second {
			continue
		}
		p.line("| %s | %s %s: %s | %s | %s | %s |", u.Step, u.Kind, escape(u.Object), escape(u.Field), escape(short(shown(u))), seconds(u.After), seconds(o.After))
	}
}

func timed(c Change) bool {
	switch c.Kind {
	case KindNode:
		return c.Field == "condition Ready" || c.Field == FieldExists || strings.HasPrefix(c.Field, "taint ")
	case KindEndpointSlice, KindEndpoints, KindLease:
		return true
	case KindPod:
		return c.Field == "deletion" || c.Field == "condition DisruptionTarget"
	default:
		return false
	}
}

// reasons are ordered by their first difference.
func reasons(all []Difference) []string {
	var found []string
	for _, d := range all {
		if d.Because != "" && !slices.Contains(found, d.Because) {
			found = append(found, d.Because)
		}
	}
	return found
}

func cell(value string, after time.Duration) string {
	if value == "" {
		return "–"
	}
	return escape(short(value)) + ", " + seconds(after)
}

func short(text string) string {
	const limit = 120
	if letters := []rune(text); len(letters) > limit {
		return string(letters[:limit]) + " …"
	}
	return text
}

func escape(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func durationOf(r Recording, step string) time.Duration {
	for _, s := range r.Steps {
		if s.Name == step {
			return s.Duration
		}
	}
	return 0
}

func count(r Recording, step string) int {
	n := 0
	for _, c := range r.Changes {
		if c.Step == step {
			n++
		}
	}
	return n
}
