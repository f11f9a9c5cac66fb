package explain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

func sliceLink(f Facts, m family) Link {
	l := Link{Code: CodeSlice, Source: "endpointslice"}
	if len(m.places) > 0 {
		slice := m.places[0].slice
		l.Version, l.Time = slice.ResourceVersion, written(slice.Annotations)
		l.Object = Object{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", Namespace: slice.Namespace, Name: slice.Name, UID: string(slice.UID)}
	}
	switch {
	case len(m.places) == 0 && m.wanted == nil:
		l.Verdict, l.Finding = Absent, fmt.Sprintf("No %s slice has it, and none should.", m.addressType)
	case len(m.places) == 0:
		l.Verdict, l.Finding, l.Next = Broken, fmt.Sprintf("No %s slice has it yet, though one should.", m.addressType), f.nextWrite()
	case len(m.places) > 1:
		l.Verdict, l.Next = Doubtful, f.nextWrite()
		l.Finding = fmt.Sprintf("%d endpoints of %s slices have it, the first in %s; it is moving, or one of them is about to go.",
			len(m.places), m.addressType, m.places[0].slice.Name)
	case m.wanted == nil || !m.served:
		l.Verdict, l.Finding = Doubtful, m.position()+", and should not be there any more."
		if index.Management(f.Service) == index.Managed {
			l.Next = f.nextWrite()
		} else {
			l.Next = "Slices of a Service that is not managed any more are left, unless --cleanup-selectorless is set."
		}
	default:
		l.Verdict, l.Finding = Good, m.position()+"."
		if drift := m.drift(m.places[0]); drift != "" {
			l.Verdict, l.Finding, l.Next = Doubtful, m.position()+", still "+drift+".", f.nextWrite()
		}
	}
	return l
}

// position says where the pod is: "It is endpoint 3 of 57 in web-x7k2p, with room for 43 more".
func (m *family) position() string {
	at := m.places[0]
	return fmt.Sprintf("It is endpoint %d of %d in %s", at.position, len(at.slice.Endpoints), at.slice.Name)
}

// nextWrite says what is known of the write that sets things right.
func (f *Facts) nextWrite() string {
	switch {
	case f.Pending:
		return "A pass over the Service is due, under way or failing; trivet slices shows how the last one went."
	case !f.Held:
		return "The replica that holds the Service's shard writes it; trivet slices shows how its last pass went."
	default:
		return "No pass is due here: see trivet slices plan for what would be written, and whether the cache is behind."
	}
}

// written is the change that a slice was last written for, as far as it says so.
func written(annotations map[string]string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t
}

func hintsLink(f Facts, families []family) Link {
	l := f.serviceLink(CodeHints)
	text := hints.Text(f.Service)
	if text == "" {
		l.Verdict, l.Finding = Absent, "The Service does not ask for its traffic to be kept near."
		return l
	}
	var of *place
	ready := false
	for _, family := range families {
		ready = ready || family.wanted != nil && family.wanted.Ready
		if len(family.places) > 0 && of == nil {
			of = &family.places[0]
		}
	}
	switch {
	case of == nil || !ready:
		l.Verdict, l.Finding = Absent, fmt.Sprintf("The Service asks for %s; only ready endpoints are meant for a zone.", text)
	case of.endpoint.HintNode != "" && of.endpoint.HintZone == "":
		l.Verdict, l.Finding = Good, fmt.Sprintf("As %s asks, it is meant for clients on node %s, which tells no zone.", text, of.endpoint.HintNode)
	case of.endpoint.HintNode != "":
		l.Verdict, l.Finding = Good, fmt.Sprintf("As %s asks, it is meant for clients on node %s, else in zone %s.", text, of.endpoint.HintNode, of.endpoint.HintZone)
	case of.endpoint.HintZone != "":
		l.Verdict, l.Finding = Good, fmt.Sprintf("As %s asks, it is meant for clients in zone %s.", text, of.endpoint.HintZone)
	case f.TopologyProblem != "":
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("The Service asks for %s, but has no hints: %s.", text, sentence(f.TopologyProblem))
		l.Next = "Without hints traffic goes to all endpoints evenly."
	default:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("The Service asks for %s, but the pod's endpoint has no hint; without one on every ready endpoint traffic goes to all evenly.", text)
		l.Next = "Hints need a zone on every node: label topology.kubernetes.io/zone."
	}
	return l
}
