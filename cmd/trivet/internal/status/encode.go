package status

import (
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/cli/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// write writes a single status.
func (c *command) write(response *gatewayv1.GetClusterStatusResponse) error {
	return c.Print(response, func() error {
		_, err := io.WriteString(c.streams.Out, c.drawTable(response))
		return err
	})
}

// writeNext writes one of many statuses. If it is not the first, an empty line precedes a table.
func (c *command) writeNext(response *gatewayv1.GetClusterStatusResponse, first bool) error {
	if c.IsDocument() {
		return printer.WriteEvent(c.streams.Out, c.Output, response)
	}
	separator := "\n"
	if first {
		separator = ""
	}
	_, err := io.WriteString(c.streams.Out, separator+c.drawTable(response))
	return err
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
