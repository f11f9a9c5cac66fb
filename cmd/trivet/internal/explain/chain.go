package explain

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// explanation is the API's explanation of any object.
type explanation interface {
	proto.Message
	GetEvidence() []*statusv1.Evidence
	// GetFirstBroken returns an index of the evidence. It comes from the gateway and may be out of
	// range.
	GetFirstBroken() int32
	GetFreshness() *statusv1.Freshness
}

// headline is the first line of an explanation.
type headline struct {
	text string
	// healthy is whether the object is healthy, apart from its evidence.
	healthy bool
	// versionOf is the noun of the object with the resourceVersion in the freshness.
	versionOf string
}

// show writes an explanation in the chosen format.
func show(streams printer.Streams, flags *client.Flags, response explanation, headline headline) error {
	if flags.Output == "json" {
		return printer.WriteJSON(streams.Out, response)
	}
	c := chain{colors: streams.Colors(flags.Color), width: streams.Width(), now: time.Now()}
	_, err := io.WriteString(streams.Out, c.draw(response, headline))
	return err
}

// firstBroken returns the first broken link; nil without one.
func firstBroken(response explanation) *statusv1.Evidence {
	if i := int(response.GetFirstBroken()); i >= 0 && i < len(response.GetEvidence()) {
		return response.GetEvidence()[i]
	}
	return nil
}

// chainVerdict returns the exit code of a chain: a broken link is a finding, an unknown one is
// undetermined.
func chainVerdict(name string, response explanation) error {
	if link := firstBroken(response); link != nil {
		return &exit.Error{Code: exit.Findings, Summary: printer.Sanitize(name + ": the first broken link is " + link.GetCode())}
	}
	for _, link := range response.GetEvidence() {
		if link.GetVerdict() == statusv1.Evidence_VERDICT_UNKNOWN {
			return &exit.Error{Code: exit.Undetermined, Summary: printer.Sanitize(name + ": could not read " + link.GetCode())}
		}
	}
	return nil
}

// asClause turns a sentence into the end of another sentence.
func asClause(sentence string) string {
	first, size := utf8.DecodeRuneInString(sentence)
	if second, _ := utf8.DecodeRuneInString(sentence[size:]); unicode.IsLower(second) {
		sentence = string(unicode.ToLower(first)) + sentence[size:]
	}
	return strings.TrimSuffix(sentence, ".")
}

// chain draws an explanation for people.
type chain struct {
	colors printer.Colors
	// width is the largest number of columns of a line; 0 means no limit.
	width int
	// now is the time for ages if the explanation has no read time.
	now time.Time
	// replica is the replica that explains. It is named once, below the chain.
	replica string
}

// draw returns the text. It depends on its arguments only, and on c.now without a read time.
func (c chain) draw(response explanation, headline headline) string {
	var text strings.Builder
	c.drawHeadline(&text, response, headline)
	text.WriteByte('\n')
	if readTime := response.GetFreshness().GetReadTime(); readTime != nil {
		c.now = readTime.AsTime()
	}
	c.replica = response.GetFreshness().GetReplicaId()
	first, links := firstBroken(response), response.GetEvidence()
	column := textColumn(links)
	for i, evidence := range links {
		c.drawLink(&text, link{evidence: evidence, column: column, firstBroken: evidence == first, last: i == len(links)-1})
	}
	if source := sourceOf(response.GetFreshness(), headline.versionOf); source != "" {
		text.WriteString("\n" + c.colors.Apply(printer.Dim, printer.Sanitize(source)) + "\n")
	}
	return text.String()
}

func (c chain) drawHeadline(text *strings.Builder, response explanation, headline headline) {
	mark, style := overallMark(response, headline.healthy)
	for i, line := range wrap(printer.Sanitize(headline.text), c.remaining(2)) {
		if i == 0 {
			text.WriteString(c.colors.Apply(style, mark) + " ")
		} else {
			text.WriteString("  ")
		}
		text.WriteString(c.colors.Apply(printer.Bold, line) + "\n")
	}
}

// overallMark returns the mark of the worst link, in agreement with the exit code.
func overallMark(response explanation, healthy bool) (string, printer.Style) {
	worst := statusv1.Evidence_VERDICT_GOOD
	for _, evidence := range response.GetEvidence() {
		switch verdict := evidence.GetVerdict(); {
		case verdict == statusv1.Evidence_VERDICT_UNKNOWN:
			worst = verdict
		case verdict == statusv1.Evidence_VERDICT_DOUBTFUL && worst == statusv1.Evidence_VERDICT_GOOD:
			worst = verdict
		}
	}
	if firstBroken(response) != nil || !healthy {
		worst = statusv1.Evidence_VERDICT_BROKEN
	}
	return markOf(worst)
}

func markOf(verdict statusv1.Evidence_Verdict) (string, printer.Style) {
	switch verdict {
	case statusv1.Evidence_VERDICT_GOOD:
		return "√", printer.Success
	case statusv1.Evidence_VERDICT_DOUBTFUL:
		return "‼", printer.Warning
	case statusv1.Evidence_VERDICT_BROKEN:
		return "×", printer.Failure
	case statusv1.Evidence_VERDICT_ABSENT:
		return "·", printer.Dim
	default:
		return "?", printer.Warning
	}
}

// sourceOf returns the line below the chain: the replica, its epoch, and the version that it read.
func sourceOf(freshness *statusv1.Freshness, versionOf string) string {
	var parts []string
	if id := freshness.GetReplicaId(); id != "" {
		parts = append(parts, "from "+id)
	}
	if epoch := freshness.GetEpoch(); epoch != 0 {
		parts = append(parts, fmt.Sprintf("epoch %d", epoch))
	}
	if version := freshness.GetResourceVersion(); version != "" {
		parts = append(parts, versionOf+" at resourceVersion "+version)
	}
	return strings.Join(parts, ", ")
}

// link is a link and its place in the drawing.
type link struct {
	evidence *statusv1.Evidence
	// column is the first column of the text to the right of the code.
	column            int
	firstBroken, last bool
}

const (
	codeColumn   = 6  // to the right of the pointer and the mark
	narrowColumn = 6  // of text in lines of its own
	minTextWidth = 36 // of text to the right of the code
)

// textColumn returns the column to the right of the longest code.
func textColumn(links []*statusv1.Evidence) int {
	longest := 0
	for _, evidence := range links {
		longest = max(longest, utf8.RuneCountInString(printer.Sanitize(evidence.GetCode())))
	}
	return codeColumn + longest + 2
}

// drawLink draws pointer, mark, code and finding, and below them the next action and the source.
func (c chain) drawLink(text *strings.Builder, l link) {
	mark, style := markOf(l.evidence.GetVerdict())
	code := printer.Sanitize(l.evidence.GetCode())
	codeStyle, pointer := printer.Normal, " "
	if l.firstBroken {
		codeStyle, pointer = printer.Failure, "▶"
	}
	text.WriteString(" " + c.colors.Apply(codeStyle, pointer) + " " + c.colors.Apply(style, mark) + "  " + c.colors.Apply(codeStyle, code))
	blanks := l.column - codeColumn - utf8.RuneCountInString(code)
	if c.remaining(l.column) < minTextWidth {
		l.column, blanks = narrowColumn, -1
	}
	for _, paragraph := range c.paragraphs(l) {
		for _, line := range wrap(printer.Sanitize(paragraph.Text), c.remaining(l.column)) {
			if blanks >= 0 {
				text.WriteString(strings.Repeat(" ", blanks))
			} else {
				text.WriteString("\n" + c.indent(l))
			}
			blanks = -1
			text.WriteString(c.colors.Apply(paragraph.Style, line))
		}
	}
	text.WriteByte('\n')
}

// indent returns what precedes text below a code: the line of the chain, unless the link is the
// last, and blanks.
func (c chain) indent(l link) string {
	if l.last {
		return strings.Repeat(" ", l.column)
	}
	return "   " + c.colors.Apply(printer.Dim, "│") + strings.Repeat(" ", l.column-4)
}

func (c chain) paragraphs(l link) []printer.Cell {
	var paragraphs []printer.Cell
	if finding := l.evidence.GetFinding(); finding != "" {
		paragraphs = append(paragraphs, printer.Cell{Text: finding})
	}
	if next := l.evidence.GetNext(); next != "" {
		paragraphs = append(paragraphs, printer.Cell{Text: "→ " + next, Style: printer.Warning})
	}
	if origin := c.origin(l.evidence); origin != "" {
		paragraphs = append(paragraphs, printer.Cell{Text: origin, Style: printer.Dim})
	}
	return paragraphs
}

// origin returns the source, the object, the version and the age of a link.
func (c chain) origin(evidence *statusv1.Evidence) string {
	var parts []string
	replica := evidence.GetReplicaId()
	if replica == c.replica {
		replica = ""
	}
	for _, part := range []string{evidence.GetSource(), replica, printer.ObjectWithKind(evidence.GetObject())} {
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

// remaining returns the number of columns from a column to the end of the line.
func (c chain) remaining(column int) int {
	if c.width == 0 {
		return 1 << 20
	}
	return max(c.width-column, 1)
}

// wrap breaks a text between words into lines of a width. A longer word has its own line.
func wrap(text string, width int) []string {
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
