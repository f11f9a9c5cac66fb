package fault

import "fmt"

// Step is what a person sees of a fault.
type Step struct {
	// Command is a command of trivet, without the name of the program.
	Command string `json:"command"`
	// Expect is what the command shows.
	Expect string `json:"expect"`
	// Seconds is how long after the break the command shows it, at most, on an idle machine.
	Seconds int `json:"seconds"`
}

// The times of a demo. GracePeriod is leasesvc's --node-monitor-grace-period; the others are the
// defaults of the servers, rounded up.
const (
	GracePeriod   = 12 // seconds from the last signal of a Node to its mark
	markSeconds   = GracePeriod + 6
	answerSeconds = 3  // the gateway waits for a replica no longer
	crashSeconds  = 15 // a session with etcd ends, and another replica leads
	refuseSeconds = 6  // a kube-apiserver that refuses connections is removed
	hangSeconds   = 15 // a kube-apiserver that does not answer is removed
	findSeconds   = 3
)

// steps returns what a person sees of a fault that is in effect.
func (s *Set) steps(f Fault) []Step {
	switch f.Kind {
	case Node:
		return []Step{
			{"nodes " + f.Name + " -w", "its health goes from suspect through silent to unknown", markSeconds},
			{"explain node " + f.Name, "the first failed link: the lease or the last heartbeat", markSeconds},
			{"status", "NODES_UNKNOWN names the Node", markSeconds},
		}
	case Zone:
		return []Step{
			{"zones", "no Node of the zone is ready, so evictions in it are limited", markSeconds},
			{"nodes --health silent,unknown", "the Nodes of the zone", markSeconds},
			{"status", "ZONE_DISRUPTED and NODES_UNKNOWN", markSeconds},
		}
	case Service:
		return s.replicaSteps(f)
	case APIServer:
		seconds := refuseSeconds
		if f.How == Hang {
			seconds = hangSeconds
		}
		return []Step{
			{"apiservers", "the kube-apiserver is not ready and is no endpoint of default/kubernetes", seconds},
			{"status", "the replica of bootstrapsvc beside it does not reach it", hangSeconds},
			{"shards --service bootstrapsvc", "the other replica of bootstrapsvc leads", hangSeconds},
		}
	case Address:
		return addressSteps(f)
	case Pods:
		return []Step{
			{"slices " + f.Name + " -w", "the count of ready endpoints changes", answerSeconds},
			{"slices plan " + f.Name, "what slicesvc would write now", answerSeconds},
			{"explain endpoint " + f.Effect.Pod + " --service " + f.Name, "the Pod's readiness decides, while it is false", answerSeconds},
		}
	default:
		return nil
	}
}

func (s *Set) replicaSteps(f Fault) []Step {
	service, _ := cutReplica(f.Name)
	lists := map[string]string{"leasesvc": "nodes", "bootstrapsvc": "findings", "slicesvc": "slices"}[service]
	if f.How == Stop {
		return []Step{
			{"shards --service " + service, "the replica handed its shards over before it ended", answerSeconds},
			{"status", "one replica, and no problem", answerSeconds},
		}
	}
	return []Step{
		{"status", "REPLICA_UNREACHABLE names the replica, until its session with etcd ends", answerSeconds},
		{lists, "the answer is partial and says which replica is missing, until another one leads", answerSeconds},
		{"shards --service " + service, "the other replica leads every shard", crashSeconds},
	}
}

func addressSteps(f Fault) []Step {
	code, repair := "not-allocated", Step{"repair plan " + findingName("not-allocated", f), "a plan, which repair apply PLAN applies exactly or not at all", findSeconds}
	if f.How == Duplicate {
		code = "duplicate-owner"
		repair = Step{"repair plan " + findingName(code, f), "no plan: only a person can tell which Service keeps the address", findSeconds}
	}
	return []Step{
		{"findings", "the finding " + findingName(code, f) + " is open", findSeconds},
		{"explain finding " + findingName(code, f), "the objects that prove it", findSeconds},
		repair,
	}
}

func findingName(code string, f Fault) string {
	return fmt.Sprintf("%s.ip-addresses.%s", code, f.Effect.Address)
}
