package up

import (
	"os"
	"strings"
)

// shownTroubles is how many lines of the log a person is shown when `trivet up` fails.
const shownTroubles = 8

// lastTroubles returns the last warnings and errors of a log, leaving out repetitions; nothing if there is no log.
func lastTroubles(path string, n int) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var lines []string
	seen := map[string]bool{}
	for line := range strings.Lines(string(content)) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), " ") // without the time
		if !strings.HasPrefix(text, "level=INFO") && !seen[text] {
			seen[text] = true
			lines = append(lines, text)
		}
	}
	return lines[max(0, len(lines)-n):]
}
