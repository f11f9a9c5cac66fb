package bootstrapsvc

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// Config is what an operator decides. DefaultConfig has the defaults.
type Config struct {
	// APIServerURL is the kube-apiserver beside this replica; empty: that of the kubeconfig.
	APIServerURL string
	// APIServerPort is the port under which pods reach it; 0: that of the URL.
	APIServerPort int
	// AdvertiseAddress is the address under which pods reach it, and behind a comma that of the other family where endpoints
	// are dual-stack; empty: found by itself.
	AdvertiseAddress string
	// ServiceClusterIPRange is kube-apiserver's flag of the same name, the primary range first; empty: read from the
	// default ServiceCIDR object.
	ServiceClusterIPRange string
	// NodePort is kube-apiserver's --kubernetes-service-node-port; 0: none.
	NodePort int
	// ExtraPorts are ports of the Service and of its endpoints beside 443, each "name:port[/protocol][:target port]".
	ExtraPorts []string
	// DualStackEndpoints asks for a ClusterIP and an EndpointSlice of each family that the cluster has.
	DualStackEndpoints bool
	// ProbeInterval is the time from one probe to the next.
	ProbeInterval time.Duration
	// ProbeTimeout is how long one probe may take.
	ProbeTimeout time.Duration
	// ProbeFailures is how many failed probes in a row make a ready kube-apiserver not ready.
	ProbeFailures int
	// Endpoints says which addresses are endpoints.
	Endpoints EndpointsConfig
	// EtcdPrefix is kube-apiserver's --etcd-prefix.
	EtcdPrefix string
	// Audit is about the audit of ClusterIPs and node ports.
	Audit AuditConfig
}

// DefaultConfig returns the defaults. A kube-apiserver that refuses connections is out after two to three seconds, one
// that accepts them and hangs after some ten.
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
		"Range of ClusterIPs, as given to kube-apiserver, the primary one first. Default: read from ServiceCIDR kubernetes.")
	fs.IntVar(&c.NodePort, "kubernetes-service-node-port", c.NodePort,
		"Node port of service default/kubernetes, as given to kube-apiserver. 0 means none.")
	fs.StringSliceVar(&c.ExtraPorts, "kubernetes-service-extra-ports", c.ExtraPorts,
		"Ports of service default/kubernetes beside 443 that every kube-apiserver's address serves, too, each as "+
			"name:port[/protocol][:target-port], such as konnectivity:8132/TCP:8091.")
	fs.BoolVar(&c.DualStackEndpoints, "dual-stack-endpoints", c.DualStackEndpoints,
		"Give service default/kubernetes a ClusterIP of each family that the cluster has, and an EndpointSlice of each. "+
			"Turned off again, the Service keeps both.")
	fs.DurationVar(&c.ProbeInterval, "probe-interval", c.ProbeInterval,
		"Time from one probe of the kube-apiserver to the next.")
	fs.DurationVar(&c.ProbeTimeout, "probe-timeout", c.ProbeTimeout,
		"How long one probe may take.")
	fs.IntVar(&c.ProbeFailures, "probe-failures", c.ProbeFailures,
		"Failed probes in a row that make a ready kube-apiserver not ready.")
	c.Endpoints.registerFlags(fs)
	fs.StringVar(&c.EtcdPrefix, "etcd-prefix", c.EtcdPrefix,
		"kube-apiserver's flag of the same name: below which its own keys are, in the etcd of --etcd-servers.")
	c.Audit.registerFlags(fs)
}

// Validate returns everything that is wrong, each with the flag to change.
func (c *Config) Validate() []error {
	var problems []error
	add := func(flag string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	_, err := c.apiServerURL()
	add("apiserver-url", err)
	add("apiserver-port", checkPort(c.APIServerPort))
	advertised, err := c.advertisedAddresses()
	add("apiserver-advertise-address", err)
	serviceRange, err := c.serviceRange()
	add("service-cluster-ip-range", err)
	add("apiserver-advertise-address", checkFamily(advertised.Primary, serviceRange))
	add("kubernetes-service-node-port", checkPort(c.NodePort))
	_, err = c.extraPorts()
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

// extraPorts are the ports beside 443 that were given, in their order.
func (c *Config) extraPorts() ([]baseline.Port, error) {
	var ports []baseline.Port
	var problems []error
	for _, text := range c.ExtraPorts {
		port, err := parsePort(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("%q: %w", text, err))
			continue
		}
		clashes := slices.ContainsFunc(ports, func(other baseline.Port) bool {
			return other.Name == port.Name || other.Port == port.Port && other.Protocol == port.Protocol
		})
		if clashes {
			problems = append(problems, fmt.Errorf("%q: its name, or its port and protocol, is given twice", text))
		}
		ports = append(ports, port)
	}
	return ports, errors.Join(problems...)
}

// parsePort reads "name:port[/protocol][:target port]".
func parsePort(text string) (baseline.Port, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 2 && len(parts) != 3 {
		return baseline.Port{}, errors.New("want name:port[/protocol][:target-port], such as konnectivity:8132/TCP:8091")
	}
	number, protocol, given := strings.Cut(parts[1], "/")
	if !given {
		protocol = string(corev1.ProtocolTCP)
	}
	port := baseline.Port{Name: parts[0], Protocol: corev1.Protocol(protocol)}
	if faults := validation.IsDNS1123Label(port.Name); len(faults) > 0 {
		return port, fmt.Errorf("%q is not the name of a port: %s", port.Name, strings.Join(faults, "; "))
	}
	if !slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, port.Protocol) {
		return port, fmt.Errorf("protocol %q: must be TCP, UDP or SCTP", protocol)
	}
	var err error
	if port.Port, err = parsePortNumber(number); err != nil {
		return port, err
	}
	port.TargetPort = port.Port
	if len(parts) == 3 {
		port.TargetPort, err = parsePortNumber(parts[2])
	}
	if baseline.IsOwnPort(port) {
		return port, errors.New("that is the kube-apiservers' own port")
	}
	return port, err
}

func parsePortNumber(text string) (int32, error) {
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("%q is not a port, want 1 to 65535", text)
	}
	return int32(number), nil
}

// apiServerURL is the URL that was given, or nil if none was.
func (c *Config) apiServerURL() (*url.URL, error) {
	if c.APIServerURL == "" {
		return nil, nil
	}
	given, err := url.Parse(c.APIServerURL)
	if err != nil {
		return nil, err
	}
	if given.Scheme != "https" || given.Hostname() == "" || given.User != nil || given.RawQuery != "" || given.Fragment != "" {
		return nil, fmt.Errorf("%q is not a URL like https://127.0.0.1:6443", given.Redacted())
	}
	return given, nil
}

// serviceRange is the primary range that was given, or the zero Prefix if none was.
func (c *Config) serviceRange() (netip.Prefix, error) {
	ranges, err := c.serviceRanges()
	if len(ranges) == 0 {
		return netip.Prefix{}, err
	}
	return ranges[0], nil
}

// serviceRanges are the ranges that were given, the primary one first; none if none was.
func (c *Config) serviceRanges() ([]netip.Prefix, error) {
	if c.ServiceClusterIPRange == "" {
		return nil, nil
	}
	var ranges []netip.Prefix
	for text := range strings.SplitSeq(c.ServiceClusterIPRange, ",") {
		parsed, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q is not a range like 10.0.0.0/16", text)
		}
		if parsed.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is an IPv4 range in IPv6 notation, which no apiserver takes", text)
		}
		if _, err := baseline.FirstAddress(parsed); err != nil {
			return nil, err
		}
		ranges = append(ranges, parsed.Masked())
	}
	if len(ranges) > 2 || len(ranges) == 2 && ranges[0].Addr().Is4() == ranges[1].Addr().Is4() {
		return nil, fmt.Errorf("%q: want one range, or one IPv4 and one IPv6 range", c.ServiceClusterIPRange)
	}
	return ranges, nil
}

// checkFamily refuses an address that no Service of the range could lead to. Either may be unknown.
func checkFamily(address netip.Addr, serviceRange netip.Prefix) error {
	if !address.IsValid() || !serviceRange.IsValid() {
		return nil
	}
	if has, want := hostaddress.FamilyOf(address), hostaddress.FamilyOf(serviceRange.Addr()); has != want {
		return fmt.Errorf("%s is %s, but the primary service range %s is %s", address, has, serviceRange, want)
	}
	if serviceRange.Contains(address) {
		return fmt.Errorf("%s lies in the service range %s; want the address of a machine", address, serviceRange)
	}
	return nil
}

func checkPort(port int) error {
	if port < 0 || port > 65535 {
		return fmt.Errorf("%d is not a port, want 1 to 65535, or 0 for none", port)
	}
	return nil
}

func checkPrefix(prefix string) error {
	if strings.Trim(prefix, "/") == "" {
		return fmt.Errorf("%q is no prefix of keys, want one like /registry", prefix)
	}
	return nil
}

func checkAtLeast(duration, least time.Duration) error {
	if duration < least {
		return fmt.Errorf("%s is too short, want at least %s", duration, least)
	}
	return nil
}
