package alerts

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/internal/promtest"
)

// table is the result in Markdown.
func table(rows []result) string {
	var text strings.Builder
	text.WriteString("| alert | fault | fires after | ends after | others that fire | why |\n|---|---|---|---|---|---|\n")
	for _, row := range rows {
		if row.Alert == "" {
			fmt.Fprintf(&text, "| none | %s | | | %s | |\n", row.What, strings.Join(row.others, ", "))
			continue
		}
		var why []string
		for _, other := range row.others {
			why = append(why, row.Also[other])
		}
		fmt.Fprintf(&text, "| %s | %s | %v | %v | %s | %s |\n", row.Alert, row.What, row.fired.Round(time.Second), row.ended.Round(time.Second),
			strings.Join(row.others, ", "), strings.Join(why, "; "))
	}
	return text.String()
}

const begin, end = "<!-- alerts: make test-alerts-live -->\n", "<!-- end of alerts -->"

// writeTable replaces the table in a page.
func writeTable(path string, rows []result) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(content), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s has no place for the table", path)
	}
	head := fmt.Sprintf("\nRanges and `for` were divided by %g; Prometheus scraped and evaluated every %v. %s.\n\n", *scale, promtest.Period, time.Now().UTC().Format("2006-01-02"))
	return os.WriteFile(path, []byte(before+begin+head+table(rows)+"\n"+end+after), 0o644)
}
