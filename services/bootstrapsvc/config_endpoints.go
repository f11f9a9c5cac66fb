package bootstrapsvc

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// masterCount is the name of apiservers.Counted in kube-apiserver's flag.
const masterCount = "master-count"

// EndpointsConfig selects the addresses that are endpoints.
type EndpointsConfig struct {
	// Reconciler is how endpoints are selected: "lease", "count" (or "master-count"), "static" or
	// "none".
	Reconciler string
	// APIServerCount is how many addresses "count" publishes at most.
	APIServerCount int
	// StaticAddress is what "static" publishes: an IP address or a DNS name.
	StaticAddress string
	// StaticPort is the port of StaticAddress; 0 means the port of the kube-apiserver.
	StaticPort int
	// AdoptMasterLeases also publishes servers that are known from kube-apiserver's own keys.
	AdoptMasterLeases bool
	// SharedAddress says that several kube-apiservers share the advertised address.
	SharedAddress bool
	// MinReady is how many endpoints stay when kube-apiservers are not ready.
	MinReady int
	// UnreadyDelay is how long a kube-apiserver that does not answer stays an endpoint.
	UnreadyDelay time.Duration
	// KeepLast leaves the address of the last kube-apiserver published when it stops.
	KeepLast bool
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
		"With --endpoint-reconciler-type=static: the IP address or DNS name to publish. A name is resolved every ten seconds.")
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
}

// problems adds all problems in the order of the flags.
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
