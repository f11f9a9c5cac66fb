package status

import (
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// encoder writes statuses in one format.
type encoder struct {
	output string
	colors printer.Colors
}

// write writes a single status.
func (e encoder) write(w io.Writer, response *gatewayv1.GetClusterStatusResponse) error {
	text, err := e.encode(response)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

// writeNext writes one of many statuses: a line of JSON, a YAML document or a table. If it is not
// the first, a separator precedes a document or a table.
func (e encoder) writeNext(w io.Writer, response *gatewayv1.GetClusterStatusResponse, first bool) error {
	if e.output == "json" {
		line, err := printer.JSONLine(response)
		if err != nil {
			return err
		}
		_, err = w.Write(append(line, '\n'))
		return err
	}
	if !first {
		separator := map[string]string{"yaml": "---\n", "table": "\n"}[e.output]
		if _, err := io.WriteString(w, separator); err != nil {
			return err
		}
	}
	return e.write(w, response)
}

// encodeWithNotice returns the status with a notice above it.
func (e encoder) encodeWithNotice(response *gatewayv1.GetClusterStatusResponse, notice string) (string, error) {
	text, err := e.encode(response)
	if notice != "" {
		text = e.colors.Apply(printer.Warning, printer.Sanitize(notice)) + "\n" + text
	}
	return text, err
}

func (e encoder) encode(response *gatewayv1.GetClusterStatusResponse) (string, error) {
	switch e.output {
	case "json":
		document, err := printer.JSON(response)
		return string(document), err
	case "yaml":
		document, err := printer.YAML(response)
		return string(document), err
	default:
		return drawTable(response, e.colors), nil
	}
}

// changeKey returns the bytes of a status without the fields that change all the time: times,
// latencies, counts. Two statuses with the same key are the same to a watch.
func changeKey(response *gatewayv1.GetClusterStatusResponse) string {
	copied := proto.CloneOf(response)
	status := copied.GetStatus()
	if status == nil {
		return ""
	}
	status.MergeTime, copied.Sources = nil, nil
	for _, service := range status.GetServices() {
		for _, result := range service.GetReplicas() {
			result.Latency = nil
			if result.GetStatus() == nil {
				continue
			}
			result.GetStatus().Counts = nil
			for _, dependency := range result.GetStatus().GetDependencies() {
				dependency.LastContactTime = nil
			}
			for _, loop := range result.GetStatus().GetLoops() {
				loop.LastRunTime, loop.LastSuccessTime, loop.RunCount, loop.FailureCount = nil, nil, 0, 0
			}
		}
	}
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(copied)
	if err != nil {
		return "" // no status has this key, so the status is shown once more than necessary
	}
	return string(key)
}
