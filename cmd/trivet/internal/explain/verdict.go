package explain

import (
	"fmt"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// verdict turns an explanation into the exit code.
func verdict(response *gatewayv1.ExplainNodeHealthResponse) error {
	name := printer.Plain(nodes.ShortName(response.GetNode()))
	if link := broken(response); link != nil {
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%s: the chain breaks at %s", name, printer.Plain(link.GetCode()))}
	}
	if health := response.GetNode().GetHealth(); !nodes.IsWell(health) {
		return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("%s is not well: %s", name, nodes.Word(health))}
	}
	for _, link := range response.GetEvidence() {
		if link.GetVerdict() == statusv1.Evidence_VERDICT_UNKNOWN {
			return &exit.Error{Code: exit.Undetermined, Summary: fmt.Sprintf("%s: %s could not be looked at", name, printer.Plain(link.GetCode()))}
		}
	}
	return nil
}

// broken returns the first broken link; nil without one. The place comes from elsewhere, so it may be anywhere.
func broken(response story) *statusv1.Evidence {
	if place := int(response.GetFirstBroken()); place >= 0 && place < len(response.GetEvidence()) {
		return response.GetEvidence()[place]
	}
	return nil
}
