package nodecluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Addresses of a node's own programs.
const (
	kubeletEndpoint = "127.0.0.1:7604"
	kubeletHealthz  = "127.0.0.1:10248"
)

// writeNodeFiles writes everything that a machine of a cluster has before it starts, below its root
// directory.
func writeNodeFiles(c Config, i int, root, cgroup string, pki *authorities) error {
	at := func(path string) string { return filepath.Join(root, path) }
	problems := []error{pki.equipNode(c, i, root)}
	for _, dir := range []string{
		"/etc/kubernetes/manifests", "/var/log", "/var/lib/etcd", "/var/lib/containerd", nodeState, "/root", "/opt",
		// The state of an agent, which is without capabilities and so owns what it writes.
		"/var/lib/trivet-agent",
	} {
		problems = append(problems, os.MkdirAll(at(dir), 0o755))
	}
	pods, err := staticPods(c, i)
	problems = append(problems, err)
	for name, text := range pods {
		problems = append(problems, writeFile(at("/etc/kubernetes/manifests/"+name), text, 0o600))
	}
	args, err := json.Marshal(kubeletArguments(c, i))
	problems = append(problems, err, writeFile(at(kubeletArgs), args, 0o600))
	for path, text := range map[string]string{
		"/etc/passwd":                     "root:x:0:0:root:/root:/bin/sh\n",
		"/etc/group":                      "root:x:0:\n",
		"/etc/hostname":                   c.Nodes[i].Name + "\n",
		"/etc/hosts":                      hosts(c),
		"/etc/resolv.conf":                "# No name server: this cluster has no DNS.\n",
		"/etc/containerd/config.toml":     containerdConfig,
		"/etc/cni/net.d/10-node.conflist": fmt.Sprintf(cniConfig, podBridge, podCIDR(i)),
		"/var/lib/kubelet/config.yaml":    fmt.Sprintf(kubeletConfig, cgroup, syncFrequency(c.Nodes[i])),
	} {
		problems = append(problems, writeFile(at(path), []byte(text), 0o644))
	}
	return errors.Join(problems...)
}

func hosts(c Config) string {
	var text strings.Builder
	text.WriteString("127.0.0.1 localhost\n")
	for i, node := range c.Nodes {
		fmt.Fprintf(&text, "%s %s\n", nodeAddress(i), node.Name)
	}
	return text.String()
}

// kubeletArguments are the flags of the kubelet. With an agent in endpoint mode its kubeconfig
// names the agent's endpoint.
func kubeletArguments(c Config, i int) []string {
	node := c.Nodes[i]
	kubeconfig := "/etc/kubernetes/kubelet.conf"
	if node.Agent == EndpointAgent && !c.WithoutTrivet {
		kubeconfig = endpointKubeconfig
	}
	args := []string{
		"--config=/var/lib/kubelet/config.yaml",
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + node.Name,
		"--node-ip=" + nodeAddress(i).String(),
		"--cert-dir=/var/lib/kubelet/pki",
		"--v=2",
	}
	if node.ControlPlane {
		// The API server refuses a label that a kubelet may not give to itself.
		args = append(args, "--register-with-taints=node-role.kubernetes.io/control-plane=:NoSchedule")
	}
	return args
}

// syncFrequency is the kubelet's default, except on control-plane nodes: their first mirror Pods
// fail, because kube-apiserver does not serve yet, and the next attempt is a sync later.
func syncFrequency(node NodeConfig) time.Duration {
	if node.ControlPlane {
		return 5 * time.Second
	}
	return time.Minute
}

const endpointKubeconfig = "/etc/kubernetes/kubelet-endpoint.conf"

// restrict_oom_score_adj: without CAP_SYS_RESOURCE no sandbox starts otherwise.
const containerdConfig = `version = 3
root = '/var/lib/containerd'
state = '/run/containerd/state'
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.differ.v1.erofs', 'io.containerd.internal.v1.tracing']
[grpc]
  address = '` + containerdSock + `'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + pauseImage + `'
[plugins.'io.containerd.cri.v1.runtime']
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/usr/lib/cni']
  conf_dir = '/etc/cni/net.d'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '/usr/sbin/runc'
  SystemdCgroup = false
[plugins.'io.containerd.internal.v1.opt']
  path = '/var/lib/containerd/opt'
`

// cniConfig has the name of the bridge and the range of Pods. The leases of addresses are in /run,
// because no Pod outlives a reboot.
const cniConfig = `{"cniVersion": "1.0.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "%s", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
    "type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// kubeletConfig is what kubeadm writes, as far as it is not about systemd, DNS and disks.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true, cacheTTL: 10s}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook}
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
containerRuntimeEndpoint: unix://` + containerdSock + `
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%s
resolvConf: /etc/resolv.conf
makeIPTablesUtilChains: false
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
serializeImagePulls: false
fileCheckFrequency: 2s
syncFrequency: %s
`
