package status

import (
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/form"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// printer writes statuses in one form.
type printer struct {
	output string
	ink    terminal.Ink
}

func newPrinter(output string, ink terminal.Ink) printer { return printer{output: output, ink: ink} }

// print writes a status that stands alone.
func (p printer) print(w io.Writer, response *gatewayv1.GetClusterStatusResponse) error {
	text, err := p.text(response)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

// printNext writes one status of many: a line of JSON, a YAML document, or a table with a blank line before all but the first.
func (p printer) printNext(w io.Writer, response *gatewayv1.GetClusterStatusResponse, separated bool) error {
	if p.output == "json" {
		line, err := form.Line(response)
		if err != nil {
			return err
		}
		_, err = w.Write(append(line, '\n'))
		return err
	}
	if separated {
		separator := map[string]string{"yaml": "---\n", "table": "\n"}[p.output]
		if _, err := io.WriteString(w, separator); err != nil {
			return err
		}
	}
	return p.print(w, response)
}

// frame is the table with a notice above it, if there is one.
func (p printer) frame(response *gatewayv1.GetClusterStatusResponse, notice string) (string, error) {
	text, err := p.text(response)
	if notice != "" {
		text = p.ink.Dye(terminal.Fair, terminal.Plain(notice)) + "\n" + text
	}
	return text, err
}

func (p printer) text(response *gatewayv1.GetClusterStatusResponse) (string, error) {
	switch p.output {
	case "json":
		document, err := form.JSON(response)
		return string(document), err
	case "yaml":
		document, err := form.YAML(response)
		return string(document), err
	default:
		return draw(response.GetStatus(), p.ink), nil
	}
}

// essenceOf is a status without what differs from one second to the next while nothing happens: times, latencies, counts.
func essenceOf(response *gatewayv1.GetClusterStatusResponse) string {
	essence := proto.CloneOf(response)
	status := essence.GetStatus()
	if status == nil {
		return ""
	}
	status.MergeTime = nil
	for _, source := range status.GetSources() {
		source.Latency = nil
	}
	for _, service := range status.GetServices() {
		for _, term := range service.GetTerms() {
			term.Remaining = nil
		}
		for _, replica := range service.GetReplicas() {
			quieten(replica)
		}
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(essence)
	if err != nil {
		return "" // never equal to a shown one, so the status is shown once more than necessary
	}
	return string(text)
}
