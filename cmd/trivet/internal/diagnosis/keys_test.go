package diagnosis

import (
	"strings"
	"testing"
)

func TestKeyPlacement(t *testing.T) {
	pod := func(node string) KeyPod {
		return KeyPod{Name: "leasesvc-1", Keys: []string{"trivet-leasesvc-etcd"}, Node: node}
	}
	placed := func(controlPlane []string, pods ...KeyPod) Result {
		return KeyPlacement(Placement{Pods: pods, ControlPlane: controlPlane})
	}
	machines := []string{"machine"}
	waiting := KeyPod{Name: "etcd-2", Keys: []string{"trivet-etcd-server-tls"}, Waits: "0/3 nodes are available: 1 node(s) didn't match pod anti-affinity rules.", Member: true}
	crowded := KeyPod{Name: "gateway-1", Keys: waiting.Keys, Waits: "0/3 nodes are available: 3 Insufficient memory."}
	checkAll(t, []judged{
		{"on the control plane", placed(machines, pod("machine"), pod("machine")), OK, "2 Pods with a key"},
		{"on a worker", placed(machines, pod("machine"), pod("worker")), Warning, "leasesvc-1 with trivet-leasesvc-etcd on worker"},
		{"hosted, on a worker", placed(nil, pod("worker")), Warning, "no control-plane node"},
		{"hosted, pending", placed(nil, pod("")), Warning, "1 Pod waits for a control-plane node"},
		{"pending", placed(machines, pod("machine"), pod("")), OK, "1 Pod with a key"},
		{"a member waits", placed(machines, pod("machine"), waiting), Warning, "1 Pod waits for a node. etcd-2: 0/3 nodes are available: 1 node(s) didn't match pod anti-affinity rules."},
		{"a server waits", placed(machines, pod("machine"), crowded), Warning, "gateway-1: 0/3 nodes are available: 3 Insufficient memory."},
		{"no Pod", placed(machines), Skipped, "No Pod"},
	})
	for value, result := range map[string]Result{
		"pods.controlPlaneOnly=false": placed(nil, pod("")), "etcd.embedded.antiAffinity=preferred": placed(machines, crowded, waiting),
		"pods.tolerations": placed(machines, crowded),
	} {
		if !strings.Contains(result.Hint, value) {
			t.Errorf("the hint %q does not name %s", result.Hint, value)
		}
	}
}

func TestEtcdRights(t *testing.T) {
	checkAll(t, []judged{
		{"no users", EtcdRights(EtcdAccess{All: true, Foreign: 7}), Warning, "7 are not Trivet's"},
		{"of its own", EtcdRights(EtcdAccess{All: true}), OK, "Trivet's alone"},
		{"a wide role", EtcdRights(EtcdAccess{Beyond: []string{"read /registry/secrets/"}}), Warning, "may read /registry/secrets/"},
		{"its role", EtcdRights(EtcdAccess{}), OK, "denies"},
		{"silent", EtcdRights(EtcdAccess{Failure: silent}), Unknown, "deadline"},
	})
}
