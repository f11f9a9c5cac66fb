package explain

import (
	"strings"
	"unicode/utf8"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// link is one link and its place in the drawing.
type link struct {
	evidence *statusv1.Evidence
	// column is where text stands behind the code.
	column int
	// first is whether it is the first broken one, last whether it ends the chain.
	first, last bool
}

const (
	codeAt    = 6  // where codes stand, behind pointer and mark
	textAt    = 6  // where text stands when it does not fit behind the code
	leastRoom = 36 // columns that text needs behind the code
)

// codeColumn is where text stands behind the longest code.
func codeColumn(links []*statusv1.Evidence) int {
	longest := 0
	for _, evidence := range links {
		longest = max(longest, utf8.RuneCountInString(printer.Plain(evidence.GetCode())))
	}
	return codeAt + longest + 2
}

// link draws a link: pointer, mark, code and finding; below them what to do, and where it was found.
func (c chain) link(text *strings.Builder, l link) {
	mark, tone := markOf(l.evidence.GetVerdict())
	code := printer.Plain(l.evidence.GetCode())
	codeTone, pointer := printer.Usual, " "
	if l.first {
		codeTone, pointer = printer.Bad, "▶"
	}
	text.WriteString(" " + c.ink.Dye(codeTone, pointer) + " " + c.ink.Dye(tone, mark) + "  " + c.ink.Dye(codeTone, code))
	blanks := l.column - codeAt - utf8.RuneCountInString(code)
	if c.room(l.column) < leastRoom { // a narrow terminal: text has its own lines
		l.column, blanks = textAt, -1
	}
	for _, paragraph := range c.paragraphs(l) {
		for _, line := range wrapped(printer.Plain(paragraph.text), c.room(l.column)) {
			if blanks >= 0 {
				text.WriteString(strings.Repeat(" ", blanks))
			} else {
				text.WriteString("\n" + c.thread(l))
			}
			blanks = -1
			text.WriteString(c.ink.Dye(paragraph.tone, line))
		}
	}
	text.WriteByte('\n')
}

// thread is what stands before text below a code: the chain that goes on, and blanks.
func (c chain) thread(l link) string {
	if l.last {
		return strings.Repeat(" ", l.column)
	}
	return "   " + c.ink.Dye(printer.Faint, "│") + strings.Repeat(" ", l.column-4)
}

type paragraph struct {
	text string
	tone printer.Tone
}

func (c chain) paragraphs(l link) []paragraph {
	var all []paragraph
	if finding := l.evidence.GetFinding(); finding != "" {
		all = append(all, paragraph{text: finding})
	}
	if next := l.evidence.GetNext(); next != "" {
		all = append(all, paragraph{text: "→ " + next, tone: printer.Fair})
	}
	if origin := c.origin(l.evidence); origin != "" {
		all = append(all, paragraph{text: origin, tone: printer.Faint})
	}
	return all
}

// origin says where a link was found, in which version, and how old it is.
func (c chain) origin(evidence *statusv1.Evidence) string {
	var parts []string
	replica := evidence.GetReplicaId()
	if replica == c.teller {
		replica = "" // it stands below the chain
	}
	for _, part := range []string{evidence.GetSource(), replica, objectName(evidence.GetObject())} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if version := evidence.GetVersion(); version != "" {
		parts = append(parts, "version "+version)
	}
	if at := evidence.GetObserveTime(); at != nil {
		parts = append(parts, printer.Due(c.now, at))
	}
	return strings.Join(parts, " · ")
}

func objectName(object *statusv1.ObjectReference) string {
	if object == nil {
		return ""
	}
	name := object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		name = namespace + "/" + name
	}
	return strings.TrimSpace(object.GetKind() + " " + name)
}

// room is how many columns are left behind a column.
func (c chain) room(column int) int {
	if c.width == 0 {
		return 1 << 20
	}
	return max(c.width-column, 1)
}

func markOf(verdict statusv1.Evidence_Verdict) (string, printer.Tone) {
	switch verdict {
	case statusv1.Evidence_VERDICT_GOOD:
		return "√", printer.Good
	case statusv1.Evidence_VERDICT_DOUBTFUL:
		return "‼", printer.Fair
	case statusv1.Evidence_VERDICT_BROKEN:
		return "×", printer.Bad
	case statusv1.Evidence_VERDICT_ABSENT:
		return "·", printer.Faint
	default:
		return "?", printer.Fair
	}
}

// overall is the mark of a whole explanation: that of its worst link, as the exit code has it.
func overall(response story, well bool) (string, printer.Tone) {
	worst := statusv1.Evidence_VERDICT_GOOD
	for _, evidence := range response.GetEvidence() {
		switch verdict := evidence.GetVerdict(); {
		case verdict == statusv1.Evidence_VERDICT_UNKNOWN:
			worst = verdict
		case verdict == statusv1.Evidence_VERDICT_DOUBTFUL && worst == statusv1.Evidence_VERDICT_GOOD:
			worst = verdict
		}
	}
	if broken(response) != nil || !well {
		worst = statusv1.Evidence_VERDICT_BROKEN
	}
	return markOf(worst)
}

// wrapped breaks a text into lines of a width, between words. A word that is longer stands alone.
func wrapped(text string, width int) []string {
	var lines []string
	line, columns := "", 0
	for _, word := range strings.Fields(text) {
		size := utf8.RuneCountInString(word)
		if columns > 0 && columns+1+size > width {
			lines, line, columns = append(lines, line), "", 0
		}
		if columns > 0 {
			line, columns = line+" ", columns+1
		}
		line, columns = line+word, columns+size
	}
	return append(lines, line)
}
