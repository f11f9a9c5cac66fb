package diagnosis

import (
	"fmt"
	"slices"
	"strings"
)

// KeyPod is a Pod with a private key, or with an account that reads Secrets with keys.
type KeyPod struct {
	Name string
	// Keys name what the Pod has.
	Keys []string
	// Node is the node of the Pod; empty while none is chosen.
	Node string
	// Waits says why no node takes the Pod, in the scheduler's words; empty if it did not say.
	Waits string
	// Member means that the Pod is a member of etcd.embedded.
	Member bool
}

// Placement is where the Pods with keys run.
type Placement struct {
	Pods []KeyPod
	// ControlPlane are the nodes with the label of the control plane.
	ControlPlane []string
}

// KeyPlacement judges whether keys are on control-plane nodes alone. A kubelet reads the Secrets of
// the Pods on its node.
func KeyPlacement(p Placement) Result {
	var elsewhere, pending, waiting []string
	member := false
	for _, pod := range p.Pods {
		switch {
		case pod.Node == "":
			pending = append(pending, pod.Name)
			if pod.Waits != "" {
				waiting = append(waiting, pod.Name+": "+strings.TrimRight(pod.Waits, ". "))
				member = member || pod.Member
			}
		case !slices.Contains(p.ControlPlane, pod.Node):
			elsewhere = append(elsewhere, fmt.Sprintf("%s with %s on %s", pod.Name, list(pod.Keys), pod.Node))
		}
	}
	switch {
	case len(elsewhere) > 0 && len(p.ControlPlane) == 0:
		return warn("The cluster shows no control-plane node, so the kubelet of each node below reads the keys of its Pods: %s", list(elsewhere)).withHint(
			"Reserve these nodes with pods.nodeSelector and pods.tolerations of the chart, and use etcd.embedded")
	case len(elsewhere) > 0:
		return warn("The kubelet of a worker reads the keys of its Pods: %s", list(elsewhere)).withHint(
			"Set pods.controlPlaneOnly=true in the values of the chart, or remove component any-node from the overlay; then replace the keys with trivet certs apply --rotate-ca, and those of the cluster's etcd as docs/install.md says at Upgrade")
	case len(pending) > 0 && len(p.ControlPlane) == 0:
		return warn("%s for a control-plane node, and the cluster shows none, as hosted clusters: %s", plural(len(pending), "Pod waits", "Pods wait"), list(pending)).withHint(
			"Set pods.controlPlaneOnly=false in the values of the chart, or name component any-node in the overlay; docs/security.md says what a worker then has")
	case member:
		return warn("%s for a node. %s", plural(len(waiting), "Pod waits", "Pods wait"), list(waiting)).withHint(
			"Label as many control-plane nodes as etcd has members, or set etcd.embedded.antiAffinity=preferred in the values of the chart; if a volume is on a worker, set pods.controlPlaneOnly=false")
	case len(waiting) > 0:
		return warn("%s for a node. %s", plural(len(waiting), "Pod waits", "Pods wait"), list(waiting)).withHint(
			"Free resources of a node that pods.nodeSelector, pods.tolerations and pods.controlPlaneOnly of the chart allow, or change these values")
	case len(p.Pods) == 0:
		return skip("No Pod has a key")
	default:
		return ok("%s on control-plane nodes", plural(len(p.Pods)-len(pending), "Pod with a key is", "Pods with a key are"))
	}
}

// EtcdAccess is what the client certificate may do in etcd beyond the keys of Trivet.
type EtcdAccess struct {
	// All means that it may read every key; Foreign is then the number of keys that are not
	// Trivet's.
	All     bool
	Foreign int64
	// Beyond are its rights that no role of a server has, such as "read /registry/secrets/".
	Beyond []string
	// Failure says why there is no answer.
	Failure Failure
}

// EtcdRights judges whether a client of etcd has more rights than the role of a server.
func EtcdRights(a EtcdAccess) Result {
	const hint = "Give each server a user with the role of deploy/etcd-roles.sh and enable authentication in etcd, or use etcd.embedded"
	switch {
	case a.Failure.Failed():
		return Undetermined("%s", a.Failure.Text)
	case a.All && a.Foreign > 0:
		return warn("The client may read all keys of etcd, of which %d are not Trivet's: etcd has no users, or the user has role root", a.Foreign).withHint(hint)
	case a.All:
		return ok("The client may read all keys of etcd, which are Trivet's alone")
	case len(a.Beyond) > 0:
		return warn("The client may %s, which no server needs", list(a.Beyond)).withHint(hint)
	default:
		return ok("etcd denies the client what is outside of its role")
	}
}
