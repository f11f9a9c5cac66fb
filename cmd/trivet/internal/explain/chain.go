package explain

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// chain draws explanations for people.
type chain struct {
	ink printer.Ink
	// width is how many columns a line may take; 0 means any number.
	width int
	// now is what ages are counted from where the explanation does not say when it was made.
	now time.Time
	// teller is the replica that explains.
	teller string
}

// story is an explanation of anything.
type story interface {
	GetEvidence() []*statusv1.Evidence
	GetFirstBroken() int32
	GetFreshness() *statusv1.Freshness
}

// gist is an explanation in short.
type gist struct {
	// answer is one sentence, well whether it says that all is well.
	answer string
	well   bool
	// read is what has the resourceVersion that the explanation names: "the node".
	read string
}

// draw depends on the explanation and its gist alone, and on the time if need be.
func (c chain) draw(response story, gist gist) string {
	var text strings.Builder
	c.headline(&text, response, gist)
	text.WriteByte('\n')
	if made := response.GetFreshness().GetReadTime(); made != nil {
		c.now = made.AsTime()
	}
	c.teller = response.GetFreshness().GetReplicaId()
	first, links := broken(response), response.GetEvidence()
	column := codeColumn(links)
	for i, evidence := range links {
		c.link(&text, link{evidence: evidence, column: column, first: evidence == first, last: i == len(links)-1})
	}
	if source := told(response.GetFreshness(), gist.read); source != "" {
		text.WriteString("\n" + c.ink.Dye(printer.Faint, printer.Plain(source)) + "\n")
	}
	return text.String()
}

// headline answers the question.
func (c chain) headline(text *strings.Builder, response story, gist gist) {
	mark, tone := overall(response, gist.well)
	for i, line := range wrapped(printer.Plain(gist.answer), c.room(2)) {
		if i == 0 {
			text.WriteString(c.ink.Dye(tone, mark) + " ")
		} else {
			text.WriteString("  ")
		}
		text.WriteString(c.ink.Dye(printer.Strong, line) + "\n")
	}
}

func answer(response *gatewayv1.ExplainNodeHealthResponse) string {
	node := response.GetNode()
	answer := nodes.ShortName(node) + " is " + phrase(node.GetHealth())
	if silence := response.GetSilence().AsDuration(); silence > 0 {
		answer += ", silent for " + printer.Age(silence)
	}
	why := node.GetReason()
	if link := broken(response); why == "" && link != nil {
		why = link.GetFinding()
	}
	if why != "" {
		answer += ": " + continued(why)
	}
	if held := node.GetHeldBy(); held != "" {
		answer += "; it is not declared, because " + held
	}
	return answer
}

// continued makes a sentence the rest of another one.
func continued(sentence string) string {
	first, size := utf8.DecodeRuneInString(sentence)
	if second, _ := utf8.DecodeRuneInString(sentence[size:]); unicode.IsLower(second) {
		sentence = string(unicode.ToLower(first)) + sentence[size:]
	}
	return strings.TrimSuffix(sentence, ".")
}

func phrase(health leasev1.NodeHealth_Health) string {
	switch health {
	case leasev1.NodeHealth_HEALTH_UNSPECIFIED:
		return "of unknown health"
	case leasev1.NodeHealth_HEALTH_NOT_READY:
		return "not ready"
	case leasev1.NodeHealth_HEALTH_UNKNOWN:
		return "declared unknown"
	default:
		return nodes.Word(health)
	}
}

// told says who explains, from what.
func told(freshness *statusv1.Freshness, read string) string {
	var parts []string
	if id := freshness.GetReplicaId(); id != "" {
		parts = append(parts, "told by "+id)
	}
	if epoch := freshness.GetEpoch(); epoch != 0 {
		parts = append(parts, fmt.Sprintf("epoch %d", epoch))
	}
	if version := freshness.GetResourceVersion(); version != "" {
		parts = append(parts, read+" as of resourceVersion "+version)
	}
	return strings.Join(parts, ", ")
}
