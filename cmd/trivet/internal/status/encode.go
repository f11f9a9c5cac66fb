package status

import (
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// printer writes statuses in one form.
type encoder struct {
	output string
	ink    printer.Ink
}

func newEncoder(output string, ink printer.Ink) encoder { return encoder{output: output, ink: ink} }

// print writes a status that stands alone.
func (p encoder) print(w io.Writer, response *gatewayv1.GetClusterStatusResponse) error {
	text, err := p.text(response)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

// printNext writes one status of many: a line of JSON, a YAML document, or a table with a blank line before all but the first.
func (p encoder) printNext(w io.Writer, response *gatewayv1.GetClusterStatusResponse, separated bool) error {
	if p.output == "json" {
		line, err := printer.JSONLine(response)
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
func (p encoder) frame(response *gatewayv1.GetClusterStatusResponse, notice string) (string, error) {
	text, err := p.text(response)
	if notice != "" {
		text = p.ink.Dye(printer.Fair, printer.Plain(notice)) + "\n" + text
	}
	return text, err
}

func (p encoder) text(response *gatewayv1.GetClusterStatusResponse) (string, error) {
	switch p.output {
	case "json":
		document, err := printer.JSON(response)
		return string(document), err
	case "yaml":
		document, err := printer.YAML(response)
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
