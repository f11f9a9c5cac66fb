package diagnosis

import (
	"fmt"
	"slices"
)

// Workload is a Deployment, StatefulSet or DaemonSet of Trivet.
type Workload struct {
	// Kind and Name identify it. Service is what its Pods run, such as "slicesvc".
	Kind, Name, Service string
	// Wanted is how many Pods it wants.
	Wanted int
	// Problem says why its controller makes no Pod; empty if the controller does not say it.
	Problem string
	// Pods are its Pods that have not ended.
	Pods []WorkloadPod
}

// WorkloadPod is a Pod of a workload.
type WorkloadPod struct {
	Name string
	// Problem says why it is not ready; empty if it is ready.
	Problem string
	// Stuck means that a container fails or that no Node takes the Pod.
	Stuck bool
	// LastLine is the last line in the log of the container that fails; empty if it is not known.
	LastLine string
}

// Workloads judges whether each workload has the Pods that it wants, and whether they joined. A Pod
// that never starts is in no answer of the gateway.
func Workloads(workloads []Workload, i Installation) Result {
	if len(workloads) == 0 {
		return skip("No Deployment, StatefulSet or DaemonSet of Trivet is in its namespace")
	}
	var failed, waiting []string
	total := 0
	for _, w := range workloads {
		name := w.Kind + " " + w.Name
		ready := 0
		for _, pod := range w.Pods {
			switch text := pod.text(); {
			case pod.Problem == "":
				ready++
			case pod.Stuck || w.Kind != "DaemonSet":
				failed = append(failed, text)
			default: // its Node may be down, which is no matter of the agent
				waiting = append(waiting, text)
			}
		}
		total += ready
		known := slices.ContainsFunc(i.Services, func(s Service) bool { return s.Name == w.Service })
		joined := len(i.Service(w.Service).Replicas)
		switch {
		case w.Problem != "":
			failed = append(failed, name+" gets no Pod: "+w.Problem)
		case len(w.Pods) < w.Wanted:
			failed = append(failed, fmt.Sprintf("%s has %d of %s", name, len(w.Pods), count(w.Wanted, "Pod")))
		case known && joined < ready:
			failed = append(failed, fmt.Sprintf("%s has %s, of which %d joined", name, plural(ready, "ready Pod", "ready Pods"), joined))
		}
	}
	switch {
	case len(failed) > 0:
		return fail("%s", list(failed))
	case len(waiting) > 0:
		return warn("%s", list(waiting))
	default:
		return ok("%s ready, as %s", plural(total, "Pod is", "Pods are"), plural(len(workloads), "workload wants", "workloads want"))
	}
}

func (p WorkloadPod) text() string {
	if p.LastLine == "" {
		return fmt.Sprintf("Pod %s: %s", p.Name, p.Problem)
	}
	return fmt.Sprintf("Pod %s: %s; its log ends with %q", p.Name, p.Problem, p.LastLine)
}
