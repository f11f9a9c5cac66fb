package bootstrapsvc

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// Config configures one replica. DefaultConfig has the defaults. RegisterFlags describes the
// fields, and [Config.Validate] checks them.
type Config struct {
	APIServerURL          string
	APIServerPort         int
	AdvertiseAddress      string
	ServiceClusterIPRange string
	NodePort              int
	ExtraPorts            []string
	DualStackEndpoints    bool
	ProbeInterval         time.Duration
	ProbeTimeout          time.Duration
	ProbeFailures         int
	Endpoints             EndpointsConfig
	EtcdPrefix            string
	Audit                 AuditConfig
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
		"kube-apiserver's flag of the same name: the prefix of its own keys in the etcd of --etcd-endpoints.")
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

// masterCount is the name of apiservers.Counted in kube-apiserver's flag.
const masterCount = "master-count"

// EndpointsConfig selects the addresses that are endpoints.
type EndpointsConfig struct {
	Reconciler        string
	APIServerCount    int
	StaticAddress     string
	StaticPort        int
	AdoptMasterLeases bool
	SharedAddress     bool
	MinReady          int
	UnreadyDelay      time.Duration
	KeepLast          bool
	KeepReady         bool
}

// defaultEndpoints returns the defaults. With the default probes, a kube-apiserver that listens and
// does not answer is removed after about ten seconds.
func defaultEndpoints() EndpointsConfig {
	return EndpointsConfig{
		Reconciler:     apiservers.Live.String(),
		APIServerCount: 1,
		MinReady:       1,
		UnreadyDelay:   8 * time.Second,
	}
}

func (c *EndpointsConfig) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Reconciler, "endpoint-reconciler-type", c.Reconciler,
		"How endpoints of service default/kubernetes are selected: lease (the ready kube-apiservers), count (the ready ones; "+
			"others stay until there are more than --apiserver-count), static (--static-apiserver-address) or none (not written).")
	fs.IntVar(&c.APIServerCount, "apiserver-count", c.APIServerCount,
		"With --endpoint-reconciler-type=count: how many kube-apiservers the cluster has.")
	fs.StringVar(&c.StaticAddress, "static-apiserver-address", c.StaticAddress,
		"With --endpoint-reconciler-type=static: the IP address or DNS name to publish. A name is resolved every ten seconds; an "+
			"address of it stays while one of the last six answers had it.")
	fs.IntVar(&c.StaticPort, "static-apiserver-port", c.StaticPort,
		"Port of --static-apiserver-address. 0 means the port of the kube-apiserver.")
	fs.BoolVar(&c.AdoptMasterLeases, "adopt-master-leases", c.AdoptMasterLeases,
		"Also publish kube-apiservers that have no sidecar yet, from their own keys below <etcd-prefix>/masterleases. "+
			"Use it to migrate a cluster from kube-apiserver's own reconciler.")
	fs.BoolVar(&c.SharedAddress, "shared-apiserver-address", c.SharedAddress,
		"Several kube-apiservers share the advertised address; it is an endpoint while one of them is ready.")
	fs.IntVar(&c.MinReady, "min-ready-apiservers", c.MinReady,
		"How many endpoints stay when kube-apiservers are not ready. Endpoints that still report stay up to this number.")
	fs.DurationVar(&c.UnreadyDelay, "unready-delay", c.UnreadyDelay,
		"How long a kube-apiserver that accepts connections and does not answer stays an endpoint, in addition to --probe-failures.")
	fs.BoolVar(&c.KeepLast, "keep-last-address", c.KeepLast,
		"Keep the address of the last kube-apiserver published when it stops in good order.")
	fs.BoolVar(&c.KeepReady, "keep-ready-address", c.KeepReady,
		"Keep the address of the kube-apiserver beside this replica published when this replica stops and the kube-apiserver is "+
			"ready. Other replicas then probe it. Give it where the two are restarted independently.")
}

func (c *EndpointsConfig) problems(add func(flag string, err error)) {
	_, err := c.kind()
	add("endpoint-reconciler-type", err)
	if c.APIServerCount < 1 {
		add("apiserver-count", fmt.Errorf("%d is too few, want at least 1", c.APIServerCount))
	}
	_, err = c.staticTarget()
	add("static-apiserver-address", err)
	add("static-apiserver-port", checkPort(c.StaticPort))
	if c.MinReady < 0 {
		add("min-ready-apiservers", fmt.Errorf("%d is negative, want at least 0", c.MinReady))
	}
	add("unready-delay", checkAtLeast(c.UnreadyDelay, 0))
}

func (c *EndpointsConfig) kind() (apiservers.Kind, error) {
	if c.Reconciler == masterCount {
		return apiservers.Counted, nil
	}
	for _, kind := range []apiservers.Kind{apiservers.Live, apiservers.Counted, apiservers.Static, apiservers.Untouched} {
		if c.Reconciler == kind.String() {
			return kind, nil
		}
	}
	return apiservers.Live, fmt.Errorf("%q is none of lease, count, static and none", c.Reconciler)
}

// policy must only be called after Validate.
func (c *EndpointsConfig) policy() (apiservers.Policy, error) {
	kind, err := c.kind()
	if err != nil {
		return apiservers.Policy{}, fmt.Errorf("--endpoint-reconciler-type: %w", err)
	}
	return apiservers.Policy{Kind: kind, Count: c.APIServerCount, MinReady: c.MinReady, KeepLast: c.KeepLast}, nil
}

// target is what "static" publishes: an address, or a name that resolves to addresses.
type target struct {
	address netip.Addr
	name    string
}

// staticTarget returns the zero target unless the reconciler is "static".
func (c *EndpointsConfig) staticTarget() (target, error) {
	isStatic := c.Reconciler == apiservers.Static.String()
	switch {
	case isStatic && c.StaticAddress == "":
		return target{}, errors.New("is needed with --endpoint-reconciler-type=static")
	case !isStatic && c.StaticAddress != "":
		return target{}, errors.New("has a meaning only with --endpoint-reconciler-type=static")
	case !isStatic:
		return target{}, nil
	}
	if address, err := netip.ParseAddr(c.StaticAddress); err == nil {
		if err := hostaddress.Routable(address.Unmap()); err != nil {
			return target{}, fmt.Errorf("%s %w; pods could not reach it", address, err)
		}
		return target{address: address.Unmap()}, nil
	}
	if problems := validation.IsDNS1123Subdomain(strings.TrimSuffix(c.StaticAddress, ".")); len(problems) > 0 {
		return target{}, fmt.Errorf("%q is neither an IP address nor a DNS name", c.StaticAddress)
	}
	return target{name: c.StaticAddress}, nil
}

// AutoRepair selects the repairs that need no operator: AutoRepairSafe, AutoRepairOff, or the codes
// of findings, separated by commas.
type AutoRepair string

const (
	// AutoRepairSafe repairs what is safe by rule.
	AutoRepairSafe AutoRepair = "safe"
	// AutoRepairOff repairs nothing.
	AutoRepairOff AutoRepair = "off"
)

// codes returns the codes of a list, none for AutoRepairSafe and AutoRepairOff.
func (a AutoRepair) codes() ([]allocation.Code, error) {
	if a == AutoRepairSafe || a == AutoRepairOff {
		return nil, nil
	}
	var codes []allocation.Code
	for name := range strings.SplitSeq(string(a), ",") {
		at := slices.IndexFunc(allocation.Codes(), func(code allocation.Code) bool { return code.APIName() == strings.TrimSpace(name) })
		if at < 0 {
			return nil, fmt.Errorf("%q is neither %q nor %q nor a list of codes of findings", string(a), AutoRepairSafe, AutoRepairOff)
		}
		codes = append(codes, allocation.Codes()[at])
	}
	return codes, nil
}

// AuditConfig configures the audit of ClusterIPs and node ports.
type AuditConfig struct {
	AutoRepair                    AutoRepair
	FindingHistory, RepairHistory int
	NodePortRange                 string
	LeakGrace                     time.Duration
}

func defaultAudit() AuditConfig {
	return AuditConfig{
		AutoRepair: AutoRepairSafe, FindingHistory: 1000, RepairHistory: 100, LeakGrace: allocation.DefaultGracePeriods().Unused,
	}
}

func (c *AuditConfig) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar((*string)(&c.AutoRepair), "auto-repair", string(c.AutoRepair),
		"Automatic repairs of allocated ClusterIPs and node ports: \"safe\" (those that are safe by rule), \"off\", or the codes of "+
			"the findings to repair where it is safe, such as NOT_ALLOCATED,LEAKED.")
	fs.IntVar(&c.FindingHistory, "finding-history", c.FindingHistory,
		"How many ended findings are kept.")
	fs.IntVar(&c.RepairHistory, "repair-history", c.RepairHistory,
		"How many repairs that people approved are kept, and how many automatic ones; fewer if they have many steps.")
	fs.StringVar(&c.NodePortRange, "service-node-port-range", c.NodePortRange,
		"Range of node ports, in any form that kube-apiserver takes: 30000-32767, 30000+2767, or one port. A stored range that differs "+
			"is a finding. Default: the stored range.")
	fs.DurationVar(&c.LeakGrace, "leak-grace", c.LeakGrace,
		"How long an allocated address or port must stay unused before it is freed. It must exceed kube-apiserver's --request-timeout "+
			"(by default 1m0s): a request allocates before it uses.")
}

// minLeakGrace is the shortest grace period: a webhook may delay a request for 30 seconds, whatever
// the request timeout of kube-apiserver is.
const minLeakGrace = 35 * time.Second

func (c *AuditConfig) problems(add func(flag string, err error)) {
	_, err := c.AutoRepair.codes()
	add("auto-repair", err)
	add("finding-history", checkHistory(c.FindingHistory))
	add("repair-history", checkHistory(c.RepairHistory))
	_, err = allocation.PortRange(c.NodePortRange)
	add("service-node-port-range", err)
	add("leak-grace", checkAtLeast(c.LeakGrace, minLeakGrace))
}

// maxHistory keeps the history small enough for etcd.
const maxHistory = 10_000

func checkHistory(count int) error {
	if count < 1 || count > maxHistory {
		return fmt.Errorf("%d is out of range, want 1 to %d", count, maxHistory)
	}
	return nil
}

// controller must only be called after Validate.
func (c *AuditConfig) controller() (allocationcontroller.Config, error) {
	codes, err := c.AutoRepair.codes()
	if err != nil {
		return allocationcontroller.Config{}, fmt.Errorf("--auto-repair: %w", err)
	}
	cfg := allocationcontroller.Config{
		AutoRepair: c.AutoRepair != AutoRepairOff, AutoRepairCodes: codes,
		FindingHistory: c.FindingHistory, RepairHistory: c.RepairHistory, GracePeriods: allocation.DefaultGracePeriods(),
	}
	cfg.GracePeriods.Unused = c.LeakGrace
	ports, err := allocation.PortRange(c.NodePortRange)
	if err != nil {
		return allocationcontroller.Config{}, fmt.Errorf("--service-node-port-range: %w", err)
	}
	if ports != "" {
		cfg.ExpectedRanges = map[allocation.Store]string{allocation.NodePorts: ports}
	}
	return cfg, nil
}

// controller is the configuration of the apiservers controller.
func (c *Config) controller(local localServer, extra []baseline.Port) (apiserverscontroller.Config, error) {
	policy, err := c.Endpoints.policy()
	if err != nil {
		return apiserverscontroller.Config{}, err
	}
	static, err := c.Endpoints.staticTarget()
	if err != nil {
		return apiserverscontroller.Config{}, fmt.Errorf("--static-apiserver-address: %w", err)
	}
	var ports []apiservers.Port
	for _, port := range extra {
		ports = append(ports, apiservers.Port{Name: port.Name, Protocol: port.Protocol, Port: port.TargetPort})
	}
	return apiserverscontroller.Config{
		Address: local.address, Port: local.port,
		Policy: policy, DualStack: c.DualStackEndpoints, ExtraPorts: ports,
		StaticAddress: static.address, StaticName: static.name, StaticPort: cmp.Or(int32(c.Endpoints.StaticPort), local.port),
		AdoptMasterLeases: c.Endpoints.AdoptMasterLeases, KeepReady: c.Endpoints.KeepReady,
		ProbeInterval: c.ProbeInterval, ProbeTimeout: c.ProbeTimeout,
		Thresholds: apiservers.ReadinessThresholds{Failures: c.ProbeFailures, Silence: c.Endpoints.UnreadyDelay},
	}, nil
}
