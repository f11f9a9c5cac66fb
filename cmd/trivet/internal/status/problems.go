package status

import (
	"fmt"
	"strings"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// trouble is one thing that is wrong with a service.
type trouble struct{ service, text string }

// problemsOf lists why the cluster is not healthy.
func problemsOf(status *gatewayv1.ClusterStatus) []trouble {
	var all []trouble
	for _, service := range status.GetServices() {
		for _, problem := range service.GetProblems() {
			all = append(all, trouble{service: service.GetService(), text: problem})
		}
	}
	return all
}

func firstProblem(status *gatewayv1.ClusterStatus) string {
	problems := problemsOf(status)
	if len(problems) == 0 {
		return "the gateway names no problem" // which a gateway of a later version may do
	}
	first := problems[0].service + ": " + problems[0].text
	if more := len(problems) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more)", first, more)
	}
	return first
}

// loopTroubles lists loops that fail or hang. They need not make their replica unready, so they stand apart.
func loopTroubles(status *gatewayv1.ClusterStatus) []trouble {
	var all []trouble
	for _, service := range status.GetServices() {
		for _, replica := range service.GetReplicas() {
			for _, loop := range replica.GetLoops() {
				if text := loopTrouble(loop); text != "" {
					all = append(all, trouble{service: service.GetService(), text: replica.GetReplica().GetId() + ": loop " + text})
				}
			}
		}
	}
	return all
}

func loopTrouble(loop *statusv1.Loop) string {
	switch loop.GetState() {
	case statusv1.Loop_STATE_FAILING:
		return fmt.Sprintf("%s fails (%d of %s): %s", loop.GetName(), loop.GetFailures(), printer.Count(int(loop.GetRuns()), "pass", "passes"), loop.GetLastError())
	case statusv1.Loop_STATE_STALLED:
		return fmt.Sprintf("%s hangs since pass %d", loop.GetName(), loop.GetRuns())
	default:
		return ""
	}
}

func writeTroubles(text *strings.Builder, ink printer.Ink, title string, troubles []trouble) {
	if len(troubles) == 0 {
		return
	}
	fmt.Fprintf(text, "\n%s\n", ink.Dye(printer.Strong, title))
	rows := printer.Table{Ink: ink}
	for _, trouble := range troubles {
		rows.Add(printer.Cell{Text: "  " + trouble.service, Tone: printer.Bad}, printer.Cell{Text: trouble.text})
	}
	_, _ = rows.WriteTo(text) // a strings.Builder takes everything
}
