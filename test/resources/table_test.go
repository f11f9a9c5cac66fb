package resources

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// row is one line of the table of a test.
type row struct {
	what, measured, bound string
	missed                bool
}

// table has the rows of one test. It is safe for concurrent use.
type table struct {
	*testing.T
	section string

	mu   sync.Mutex // guards rows
	rows []row
}

// newTable returns a table that the test's cleanup prints, and writes to the page of the long form.
func newTable(t *testing.T, section string) *table {
	tb := &table{T: t, section: section}
	t.Cleanup(func() {
		tb.print()
		if *out != "" && *long {
			if err := tb.write(*out); err != nil {
				t.Error(err)
			}
		}
	})
	return tb
}

// add adds a row without a bound.
func (t *table) add(what, format string, arguments ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, row{what: what, measured: fmt.Sprintf(format, arguments...)})
}

// atMost adds a row with a bound, and fails the test above it.
func atMost[N int | int64 | float64 | time.Duration](t *table, what string, measured, bound N, show func(N) string) {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, row{what: what, measured: show(measured), bound: "≤ " + show(bound), missed: measured > bound})
	if measured > bound {
		t.Errorf("%s: %s, want %s at most", what, show(measured), show(bound))
	}
}

func count[N int | int64](n N) string { return fmt.Sprint(n) }

func mebibytes[N int | int64](n N) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func duration(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

func (t *table) print() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, r := range t.rows {
		note := ""
		if r.missed {
			note = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.what, r.measured, r.bound, note)
	}
	if w.Flush() == nil {
		t.Logf("%s\n%s", t.section, text.String())
	}
}

// write replaces the section of this test in the page.
func (t *table) write(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var section strings.Builder
	fmt.Fprintf(&section, "## %s\n\nWritten on %s, on %d cores, %s/%s, %s.\n\n| what | measured | bound |\n|---|---|---|\n",
		t.section, time.Now().UTC().Format("2006-01-02 15:04 UTC"), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	for _, r := range t.rows {
		if r.missed {
			r.measured += " **missed**"
		}
		fmt.Fprintf(&section, "| %s | %s | %s |\n", r.what, r.measured, r.bound)
	}
	sections := strings.SplitAfter(string(page), "\n\n## ")
	for i := range sections {
		sections[i] = strings.TrimSuffix(sections[i], "\n\n## ")
	}
	own := strings.TrimPrefix(strings.TrimSpace(section.String()), "## ")
	at := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, t.section+"\n") })
	if at < 0 {
		sections = append(sections, own)
	} else {
		sections[at] = own
	}
	text := strings.TrimSpace(strings.Join(sections, "\n\n## ")) + "\n"
	return os.WriteFile(filepath.Clean(path), []byte(text), 0o600)
}

// percentile returns a percentile of durations, which it sorts.
func percentile(all []time.Duration, of float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(of*float64(len(all))), len(all)-1)]
}
