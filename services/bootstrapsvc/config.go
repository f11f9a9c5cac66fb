package bootstrapsvc

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Config configures one replica. DefaultConfig has the defaults.
type Config struct {
	// APIServerURL is the kube-apiserver beside this replica; empty means the server of the
	// kubeconfig.
	APIServerURL string
	// APIServerPort is the port under which pods reach it; 0 means the port of the URL.
	APIServerPort int
	// AdvertiseAddress is the address under which pods reach it. With dual-stack endpoints, the
	// address of the other family may follow after a comma. Empty: an address of this machine.
	AdvertiseAddress string
	// ServiceClusterIPRange is kube-apiserver's flag of the same name, the primary range first.
	// Empty: the ranges of the default ServiceCIDR.
	ServiceClusterIPRange string
	// NodePort is kube-apiserver's --kubernetes-service-node-port; 0 means none.
	NodePort int
	// ExtraPorts are ports of the Service and of its endpoints beside 443, each
	// "name:port[/protocol][:target port]".
	ExtraPorts []string
	// DualStackEndpoints asks for a ClusterIP and an EndpointSlice of each family of the cluster.
	DualStackEndpoints bool
	// ProbeInterval is the time from one probe to the next.
	ProbeInterval time.Duration
	// ProbeTimeout limits one probe.
	ProbeTimeout time.Duration
	// ProbeFailures is how many failed probes in a row make a ready kube-apiserver not ready.
	ProbeFailures int
	// Endpoints selects the addresses that are endpoints.
	Endpoints EndpointsConfig
	// EtcdPrefix is kube-apiserver's --etcd-prefix.
	EtcdPrefix string
	// Audit configures the audit of ClusterIPs and node ports.
	Audit AuditConfig
}

// DefaultConfig returns the defaults. A kube-apiserver that refuses connections is removed after
// two to three seconds, one that accepts them and hangs after about ten.
func DefaultConfig() Config {
	return Config{
		ProbeInterval: time.Second,
		ProbeTimeout:  3 * time.Second,
		ProbeFailures: 3,
		Endpoints:     defaultEndpoints(),
		EtcdPrefix:    "/registry",
		Audit:         defaultAudit(),
	}
}

// RegisterFlags binds the configuration to flags, with its present values as defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.APIServerURL, "apiserver-url", c.APIServerURL,
		"URL of the kube-apiserver beside this replica, whose /readyz is probed. Default: the server of the kubeconfig.")
	fs.IntVar(&c.APIServerPort, "apiserver-port", c.APIServerPort,
		"Port under which pods reach the kube-apiserver. Default: the port of its URL.")
	fs.StringVar(&c.AdvertiseAddress, "apiserver-advertise-address", c.AdvertiseAddress,
		"Address under which pods reach the kube-apiserver; with --dual-stack-endpoints one of each family, separated by a comma. "+
			"Default: the address in its URL if other machines can reach it, otherwise that of the default route's interface.")
	fs.StringVar(&c.ServiceClusterIPRange, "service-cluster-ip-range", c.ServiceClusterIPRange,
		"Range of ClusterIPs, as given to kube-apiserver, the primary one first. Default: the ranges of ServiceCIDR kubernetes.")
	fs.IntVar(&c.NodePort, "kubernetes-service-node-port", c.NodePort,
		"Node port of service default/kubernetes, as given to kube-apiserver. 0 means none.")
	fs.StringSliceVar(&c.ExtraPorts, "kubernetes-service-extra-ports", c.ExtraPorts,
		"Further ports of service default/kubernetes and of every kube-apiserver's address, each as "+
			"name:port[/protocol][:target port], such as konnectivity:8132/TCP:8091.")
	fs.BoolVar(&c.DualStackEndpoints, "dual-stack-endpoints", c.DualStackEndpoints,
		"Give service default/kubernetes a ClusterIP and an EndpointSlice of each family of the cluster. "+
			"The Service keeps both ClusterIPs when this is disabled again.")
	fs.DurationVar(&c.ProbeInterval, "probe-interval", c.ProbeInterval,
		"Time from one probe of the kube-apiserver to the next.")
	fs.DurationVar(&c.ProbeTimeout, "probe-timeout", c.ProbeTimeout,
		"Time limit of one probe.")
	fs.IntVar(&c.ProbeFailures, "probe-failures", c.ProbeFailures,
		"Failed probes in a row that make a ready kube-apiserver not ready.")
	c.Endpoints.registerFlags(fs)
	fs.StringVar(&c.EtcdPrefix, "etcd-prefix", c.EtcdPrefix,
		"kube-apiserver's flag of the same name: the prefix of its own keys in the etcd of --etcd-servers.")
	c.Audit.registerFlags(fs)
}

// Validate returns all problems, each with the flag to change.
func (c *Config) Validate() []error {
	var problems []error
	add := func(flag string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	_, err := parseAPIServerURL(c.APIServerURL)
	add("apiserver-url", err)
	add("apiserver-port", checkPort(c.APIServerPort))
	advertised, err := parseAdvertisedAddresses(c.AdvertiseAddress, c.DualStackEndpoints)
	add("apiserver-advertise-address", err)
	ranges, err := parseServiceRanges(c.ServiceClusterIPRange)
	add("service-cluster-ip-range", err)
	add("apiserver-advertise-address", checkFamily(advertised.Primary, primaryOf(ranges)))
	add("kubernetes-service-node-port", checkPort(c.NodePort))
	_, err = parseExtraPorts(c.ExtraPorts)
	add("kubernetes-service-extra-ports", err)
	add("probe-interval", checkAtLeast(c.ProbeInterval, 100*time.Millisecond))
	add("probe-timeout", checkAtLeast(c.ProbeTimeout, 100*time.Millisecond))
	if c.ProbeFailures < 1 {
		add("probe-failures", fmt.Errorf("%d is too few, want at least 1", c.ProbeFailures))
	}
	c.Endpoints.problems(add)
	add("etcd-prefix", checkPrefix(c.EtcdPrefix))
	c.Audit.problems(add)
	return problems
}
