package explain

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// explanation is the API's explanation of any object.
type explanation struct {
	response proto.Message
	evidence []*metav1.Evidence
	// brokenIndex is an index of the evidence; nil without a failed link. It comes from the gateway
	// and may be out of range.
	brokenIndex *int32
	sources     []*metav1.Source
}

// headline is the first line of an explanation.
type headline struct {
	text string
	// attention is whether the object needs attention, apart from its evidence.
	attention bool
}

// show writes an explanation in the chosen format.
func show(streams printer.Streams, flags *client.Flags, e explanation, headline headline) error {
	return flags.Print(e.response, func() error {
		c := chain{colors: flags.Colors(), width: streams.Width(), now: time.Now()}
		_, err := io.WriteString(streams.Out, c.draw(e, headline))
		return err
	})
}

// firstFailed returns the first failed link; nil without one.
func (e explanation) firstFailed() *metav1.Evidence {
	if e.brokenIndex == nil || *e.brokenIndex < 0 || int(*e.brokenIndex) >= len(e.evidence) {
		return nil
	}
	return e.evidence[*e.brokenIndex]
}

// chainVerdict returns the exit code of a chain: a failed link is a finding, an unknown one is
// undetermined.
func chainVerdict(name string, e explanation) error {
	if link := e.firstFailed(); link != nil {
		return &exit.Error{Code: exit.Findings, Summary: printer.Sanitize(name + ": the first failed link is " + link.GetCode())}
	}
	for _, link := range e.evidence {
		if link.GetResult() == metav1.Evidence_RESULT_UNKNOWN {
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
func (c chain) draw(e explanation, headline headline) string {
	var text strings.Builder
	c.drawHeadline(&text, e, headline)
	text.WriteByte('\n')
	if len(e.sources) > 0 {
		c.replica = e.sources[0].GetReplicaId()
		if readTime := e.sources[0].GetReadTime(); readTime != nil {
			c.now = readTime.AsTime()
		}
	}
	failed := e.firstFailed()
	column := textColumn(e.evidence)
	for i, evidence := range e.evidence {
		c.drawLink(&text, link{evidence: evidence, column: column, firstFailed: evidence == failed, last: i == len(e.evidence)-1})
	}
	for i, source := range e.sources {
		if i == 0 {
			text.WriteByte('\n')
		}
		text.WriteString(c.colors.Apply(printer.Dim, printer.Sanitize(sourceLine(source))) + "\n")
	}
	return text.String()
}

func (c chain) drawHeadline(text *strings.Builder, e explanation, headline headline) {
	mark, style := overallMark(e, headline.attention)
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
func overallMark(e explanation, attention bool) (string, printer.Style) {
	worst := metav1.Evidence_RESULT_OK
	for _, evidence := range e.evidence {
		switch result := evidence.GetResult(); {
		case result == metav1.Evidence_RESULT_UNKNOWN:
			worst = result
		case result == metav1.Evidence_RESULT_WARNING && worst == metav1.Evidence_RESULT_OK:
			worst = result
		}
	}
	if e.firstFailed() != nil || attention {
		worst = metav1.Evidence_RESULT_FAILED
	}
	return markOf(worst)
}

func markOf(result metav1.Evidence_Result) (string, printer.Style) {
	switch result {
	case metav1.Evidence_RESULT_OK:
		return "√", printer.Success
	case metav1.Evidence_RESULT_WARNING:
		return "‼", printer.Warning
	case metav1.Evidence_RESULT_FAILED:
		return "×", printer.Failure
	case metav1.Evidence_RESULT_NOT_APPLICABLE:
		return "·", printer.Dim
	default:
		return "?", printer.Warning
	}
}

// sourceLine returns the line below the chain: the replica, its epoch, and how fresh its caches
// are.
func sourceLine(source *metav1.Source) string {
	parts := []string{"from " + cmp.Or(source.GetReplicaId(), source.GetService(), "an unnamed replica")}
	if epoch := source.GetEpoch(); epoch != 0 {
		parts = append(parts, fmt.Sprintf("epoch %d", epoch))
	}
	for _, cache := range source.GetCaches() {
		text := cache.GetKind()
		if version := cache.GetResourceVersion(); version != "" {
			text += " at resourceVersion " + version
		}
		if cache.GetLag() == nil {
			text += ", never heard"
		} else if lag := cache.GetLag().AsDuration(); lag >= lagShown {
			text += ", heard " + printer.Age(lag) + " ago"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// lagShown is the age from which a cache may be out of date: a quiet watch hears a bookmark about
// once a minute.
const lagShown = 2 * time.Minute

// link is a link and its place in the drawing.
type link struct {
	evidence *metav1.Evidence
	// column is the first column of the text to the right of the code.
	column            int
	firstFailed, last bool
}

const (
	codeColumn   = 6  // to the right of the pointer and the mark
	narrowColumn = 6  // of text in lines of its own
	minTextWidth = 36 // of text to the right of the code
)

// textColumn returns the column to the right of the longest code.
func textColumn(links []*metav1.Evidence) int {
	longest := 0
	for _, evidence := range links {
		longest = max(longest, utf8.RuneCountInString(printer.Sanitize(evidence.GetCode())))
	}
	return codeColumn + longest + 2
}

// drawLink draws pointer, mark, code and message, and below them the next action and the source.
func (c chain) drawLink(text *strings.Builder, l link) {
	mark, style := markOf(l.evidence.GetResult())
	code := printer.Sanitize(l.evidence.GetCode())
	codeStyle, pointer := printer.Normal, " "
	if l.firstFailed {
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
	if message := l.evidence.GetMessage(); message != "" {
		paragraphs = append(paragraphs, printer.Cell{Text: message})
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
func (c chain) origin(evidence *metav1.Evidence) string {
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
