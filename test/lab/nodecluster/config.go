package nodecluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"
)

// AgentMode is how trivet-agent works on a node.
type AgentMode string

// The modes of an agent.
const (
	NoAgent       AgentMode = ""
	ProbeAgent    AgentMode = "probe"
	EndpointAgent AgentMode = "endpoint"
)

// NodeConfig describes a node.
type NodeConfig struct {
	Name string `json:"name"`
	// ControlPlane gives the node a kube-apiserver with its bootstrapsvc. The first such node also
	// has etcd, kube-controller-manager, kube-scheduler, leasesvc, slicesvc and the gateway.
	ControlPlane bool      `json:"controlPlane,omitempty"`
	Agent        AgentMode `json:"agent,omitempty"`
}

// Config describes a cluster. Empty fields have the defaults of DefaultConfig.
type Config struct {
	// Dir has everything about the cluster; Down removes it.
	Dir string `json:"-"`
	// Assets has the static binaries of Kubernetes, etcd and containerd.
	Assets string `json:"assets"`
	// Trivet has Trivet's static binaries, from which the image is made. TrivetImage is an archive
	// with the image instead; it holds the name trivet:devel.
	Trivet      string `json:"trivet"`
	TrivetImage string `json:"trivetImage,omitempty"`
	// Images are further archives for all nodes.
	Images []string     `json:"images,omitempty"`
	Nodes  []NodeConfig `json:"nodes"`
	// CertificateLifetime is that of the kubelets' certificates, which kube-controller-manager
	// renews.
	CertificateLifetime time.Duration `json:"certificateLifetime"`
	// Controllers is kube-controller-manager's list; the default leaves out what Trivet replaces.
	Controllers string `json:"controllers"`
	// UpstreamEndpoints lets kube-apiserver publish its own address; WithoutTrivet starts no server
	// of Trivet. Together with Controllers "*" they make a cluster without Trivet.
	UpstreamEndpoints bool `json:"upstreamEndpoints,omitempty"`
	WithoutTrivet     bool `json:"withoutTrivet,omitempty"`
	// ServerArgs are added to the arguments of Trivet's servers and of static Pods, by name.
	ServerArgs map[string][]string `json:"serverArgs,omitempty"`
	Logger     *slog.Logger        `json:"-"`
}

// ReplacingControllers is the value of kube-controller-manager's --controllers with which Trivet
// replaces what it can.
const ReplacingControllers = "*,-endpointslice-controller,-endpointslice-mirroring-controller,-node-lifecycle-controller,-taint-eviction-controller"

// DefaultConfig returns two control-plane nodes and two workers, each with an agent. A kubelet on a
// control-plane node needs no agent to reach its own kube-apiserver, so these agents probe. assets
// and trivet are directories with binaries.
func DefaultConfig(dir, assets, trivet string) Config {
	return Config{
		Dir: dir, Assets: assets, Trivet: trivet,
		Nodes: []NodeConfig{
			{Name: "cp1", ControlPlane: true, Agent: ProbeAgent},
			{Name: "cp2", ControlPlane: true, Agent: ProbeAgent},
			{Name: "w1", Agent: EndpointAgent},
			{Name: "w2", Agent: ProbeAgent},
		},
	}
}

// UseUpstream makes the cluster one that has never heard of Trivet: upstream's controllers and
// endpoint reconciler run, and no server and no agent of Trivet. Nodes still have its image.
func (c *Config) UseUpstream() {
	c.Controllers, c.UpstreamEndpoints, c.WithoutTrivet = "*", true, true
	for i := range c.Nodes {
		c.Nodes[i].Agent = NoAgent
	}
}

func (c Config) withDefaults() Config {
	if c.CertificateLifetime == 0 {
		c.CertificateLifetime = 24 * time.Hour
	}
	if c.Controllers == "" {
		c.Controllers = ReplacingControllers
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var problems []error
	if !filepath.IsAbs(c.Dir) || !filepath.IsAbs(c.Assets) {
		problems = append(problems, errors.New("the directories of a cluster and of its binaries must be absolute"))
	}
	if len(c.Nodes) == 0 || !c.Nodes[0].ControlPlane {
		problems = append(problems, errors.New("the first node must be a control-plane node"))
	}
	if len(c.Nodes) > maxNodes {
		problems = append(problems, fmt.Errorf("a cluster has at most %d nodes, not %d", maxNodes, len(c.Nodes)))
	}
	for i, node := range c.Nodes {
		if !validName(node.Name) {
			problems = append(problems, fmt.Errorf("%q is no name of a node: 1 to 8 lower-case letters and digits", node.Name))
		}
		if slices.ContainsFunc(c.Nodes[:i], func(other NodeConfig) bool { return other.Name == node.Name }) {
			problems = append(problems, fmt.Errorf("two nodes have the name %s", node.Name))
		}
	}
	return errors.Join(problems...)
}

// validName keeps names of links within the 15 bytes of the kernel.
func validName(name string) bool {
	return len(name) > 0 && len(name) <= 8 && name != hubName &&
		!slices.ContainsFunc([]byte(name), func(c byte) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
}

// Addresses of a cluster. They exist in its network namespaces only, so clusters may share them.
const (
	hubName       = "hub"
	maxNodes      = 100
	firstHost     = 11
	podBridge     = "cni0"
	serviceCIDR   = "10.96.0.0/16"
	kubernetesIP  = "10.96.0.1"
	apiServerPort = 6443
)

// hubAddress is the bridge's. Connections from outside of the nodes come from it.
func hubAddress() netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, 1}) }

// nodeAddress is the address of the i-th node, and podCIDR the range of its Pods.
func nodeAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(firstHost + i)}) }

func podCIDR(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 78, byte(firstHost + i), 0}), 24)
}
