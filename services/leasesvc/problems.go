package leasesvc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// holdTolerance is how long marking may be suspended before that is a problem. A pause of the
	// process or a missed self-check ends earlier.
	holdTolerance = 5 * time.Second
	// watchSilence is how long a watch may be silent. kube-apiserver sends a bookmark about once a
	// minute.
	watchSilence = 3 * time.Minute
	// namedNodes is how many Nodes or zones a Problem names.
	namedNodes = 5
)

// Next steps that several problems share.
const (
	nextExplain   = "`trivet explain node` of the first one says why."
	nextAPIServer = "Look at kube-apiserver, and at the log of this replica."
)

// Problems returns what is wrong with the duties of this replica, the worst first. It answers from
// memory.
func (s *Service) Problems() []*metav1.Problem {
	var problems []*metav1.Problem
	add := func(severity metav1.Problem_Severity, code, resource, message, next string) {
		problems = append(problems, &metav1.Problem{
			Code: code, Severity: severity, Resource: resource, Object: objectOf(resource),
			Message: wording.Valid(message), Next: next, Service: ServiceName,
		})
	}
	s.leaseProblems(add)
	if s.nodeHealth.enabled {
		s.nodeProblems(add)
	}
	s.evictionProblems(add)
	slices.SortStableFunc(problems, func(a, b *metav1.Problem) int { return cmp.Compare(b.Severity, a.Severity) })
	return problems
}

type addProblem func(severity metav1.Problem_Severity, code, resource, message, next string)

func (s *Service) leaseProblems(add addProblem) {
	sessions := s.sessions.Load()
	if sessions == nil {
		return // the status of the loop says so
	}
	p := sessions.Problems()
	if a := p.Unwritten; a.Count > 0 {
		add(metav1.Problem_SEVERITY_ERROR, "LEASES_NOT_WRITTEN", s.resourceOf(a),
			fmt.Sprintf("%s cannot be written, so other readers may take a live holder for dead: %s. The first one fails with: %s.",
				count(a.Count, "Lease object"), s.namesOf(a), a.Detail), nextAPIServer)
	}
	if a := p.Unowned; a.Count > 0 {
		add(metav1.Problem_SEVERITY_WARNING, "LEASES_WITHOUT_NODE", s.resourceOf(a),
			fmt.Sprintf("%s not written, because no Node has the name of the holder: %s.", countIs(a.Count, "Lease object"), s.namesOf(a)),
			"See whether the kubelet registers its Node, and whether its agent has another name.")
	}
	if a := p.Duplicates; a.Count > 0 {
		add(metav1.Problem_SEVERITY_WARNING, "DUPLICATE_HOLDERS", s.resourceOf(a),
			fmt.Sprintf("Two boots send heartbeats under the name of %s: %s. The rejected boot of the first one is %q.",
				count(a.Count, "holder"), s.namesOf(a), a.Detail),
			"Stop one of both machines; often one is a clone of the other.")
	}
	if total := sessions.Counts().Total(); total >= s.cfg.MaxSessions {
		add(metav1.Problem_SEVERITY_ERROR, "HOLDER_LIMIT_REACHED", "replicas/"+s.member,
			fmt.Sprintf("This replica has %d holders, the most that it takes: it rejects further ones.", total),
			"Raise --max-sessions, or add replicas.")
	}
}

func (s *Service) leaseName(key session.Key) string {
	return fmt.Sprintf("namespaces/%s/leases/%s", s.catalog.Get(key.Class).Namespace, key.Name)
}

// resourceOf returns the name of the only session, or "" if there are several.
func (s *Service) resourceOf(a sessioncontroller.Affected) string {
	if a.Count != 1 || len(a.First) != 1 {
		return ""
	}
	return s.leaseName(a.First[0])
}

func (s *Service) namesOf(a sessioncontroller.Affected) string {
	names := make([]string, 0, len(a.First))
	for _, key := range a.First {
		names = append(names, s.leaseName(key))
	}
	return list(names, a.Count)
}

func (s *Service) nodeProblems(add addProblem) {
	snapshot := s.nodeHealth.publisher.Snapshot()
	if snapshot == nil {
		add(metav1.Problem_SEVERITY_UNKNOWN, "CACHE_NOT_SYNCED", "replicas/"+s.member,
			"This replica has not read all Nodes yet, so it judges none.", nextAPIServer)
		return
	}
	writes := s.nodeHealth.writes() // else upstream marks silent Nodes, whatever holds the loop
	if hold := snapshot.Suspension; writes && hold.Active() && snapshot.At.Instant.Sub(hold.Since) >= holdTolerance {
		add(metav1.Problem_SEVERITY_UNKNOWN, "MARKING_SUSPENDED", "replicas/"+s.member,
			fmt.Sprintf("No silent Node is marked Unknown since %s: %s.", snapshot.Wall(hold.Since).UTC().Format(time.DateTime+" UTC"), hold.Message),
			"It ends by itself once the cause is gone; trivet_node_marking_suspended has the cause. "+nextAPIServer)
	}
	addNodes := func(severity metav1.Problem_Severity, code string, nodes nodehealthcontroller.NamedNodes, is string) {
		if nodes.Count > 0 {
			add(severity, code, nodeResource(nodes.First, nodes.Count),
				fmt.Sprintf("%s %s: %s.", countIs(nodes.Count, "Node"), is, list(nodes.First, nodes.Count)), nextExplain)
		}
	}
	if writes {
		addNodes(metav1.Problem_SEVERITY_UNKNOWN, "NODES_SILENT", snapshot.Held(), "silent and not marked Unknown, because that is held")
	}
	addNodes(metav1.Problem_SEVERITY_WARNING, "KUBELET_CUT_OFF", snapshot.KubeletsCutOff(), "cut off: its agent lives, and its kubelet reaches no kube-apiserver")
	addNodes(metav1.Problem_SEVERITY_WARNING, "AGENT_CUT_OFF", snapshot.AgentsCutOff(), "cut off: its kubelet lives, and no heartbeat of its agent arrives")
	addNodes(metav1.Problem_SEVERITY_WARNING, "NODES_UNKNOWN", snapshot.Unknown(), "silent and marked Unknown")
	addNodes(metav1.Problem_SEVERITY_WARNING, "NODES_NOT_READY", snapshot.NotReady(), "alive and not ready")
	if snapshot.ZoneEpoch != 0 {
		zoneProblems(snapshot, add)
	}
	for _, fresh := range s.nodeHealth.store.Freshness(nodestore.Nodes | nodestore.Leases | nodestore.Pods) {
		if silence := time.Since(fresh.Heard); !fresh.Heard.IsZero() && silence >= watchSilence {
			add(metav1.Problem_SEVERITY_UNKNOWN, "WATCH_SILENT", "replicas/"+s.member,
				fmt.Sprintf("The watch of %s objects was not heard for %v, so the cache may be out of date.", fresh.Kind, silence.Round(time.Second)), nextAPIServer)
		}
	}
}

func zoneProblems(snapshot *nodehealthcontroller.Snapshot, add addProblem) {
	byState := map[nodehealth.ZoneState][]string{}
	for _, zone := range snapshot.Zones {
		byState[zone.State] = append(byState[zone.State], nodehealthcontroller.ZoneName(zone.Name))
	}
	for _, c := range []struct {
		state    nodehealth.ZoneState
		severity metav1.Problem_Severity
		is       string
	}{
		{nodehealth.FullDisruption, metav1.Problem_SEVERITY_ERROR, "no ready node"},
		{nodehealth.PartialDisruption, metav1.Problem_SEVERITY_WARNING, "so many nodes that are not ready that the zone may be what is wrong"},
	} {
		names := byState[c.state]
		if len(names) == 0 {
			continue
		}
		resource, has := "", "have"
		if len(names) == 1 {
			resource, has = names[0], "has"
		}
		add(c.severity, "ZONE_DISRUPTED", resource,
			fmt.Sprintf("%s %s %s: %s.", count(len(names), "zone"), has, c.is, list(names[:min(len(names), namedNodes)], len(names))),
			"Look at what the nodes of the zone have in common: network, power, a rollout.")
	}
}

func (s *Service) evictionProblems(add addProblem) {
	if pods, last := s.eviction.controller.Failing(); pods > 0 && last != nil {
		add(metav1.Problem_SEVERITY_ERROR, "EVICTIONS_FAILING", "",
			fmt.Sprintf("%s cannot be evicted; the last failure is: %v.", count(pods, "pod"), last), nextAPIServer)
	}
	holds := s.eviction.controller.Holds()
	if len(holds) == 0 {
		return
	}
	var nodes []string
	for node := range holds {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	first := nodes[:min(len(nodes), namedNodes)]
	add(metav1.Problem_SEVERITY_UNKNOWN, "EVICTIONS_SUSPENDED", nodeResource(first, len(nodes)),
		fmt.Sprintf("Pods of %s are due and not evicted: %s. The reason on the first one: %s.",
			count(len(nodes), "Node"), list(first, len(nodes)), holds[nodes[0]].Message), nextExplain)
}

// nodeResource returns the name of the only Node, or "" if there are several.
func nodeResource(first []string, all int) string {
	if all != 1 {
		return ""
	}
	return "nodes/" + first[0]
}

// objectOf returns the Kubernetes object of a Node or lease; nil for other resources.
func objectOf(resource string) *metav1.ObjectReference {
	switch parts := strings.Split(resource, "/"); {
	case len(parts) == 2 && parts[0] == "nodes":
		return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: parts[1]}
	case len(parts) == 4 && parts[2] == "leases":
		return &metav1.ObjectReference{ApiVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: parts[1], Name: parts[3]}
	}
	return nil
}

// list returns the first names, and how many follow.
func list(first []string, all int) string {
	text := strings.Join(first, ", ")
	if more := all - len(first); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func countIs(n int, one string) string {
	if n == 1 {
		return "1 " + one + " is"
	}
	return count(n, one) + " are"
}
