package devcluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
)

// DefaultServiceCIDR is where ClusterIPs come from unless Config says
// otherwise: room for 65,000 Services.
const DefaultServiceCIDR = "10.0.0.0/16"

// Config describes a cluster. The zero value is a whole cluster on free
// ports in a temporary directory.
type Config struct {
	// AssetsDir holds the binaries etcd and kube-apiserver. The environment
	// variable KUBEBUILDER_ASSETS wins over it. Empty: the nearest ".assets"
	// in the working directory, the executable's directory or one above them.
	AssetsDir string
	// DataDir keeps data, credentials and logs; it is made if absent, and
	// what etcd stored there is found again by a later Start. Credentials
	// are new with every Start. Empty: a temporary directory, removed by Stop.
	DataDir string
	// ServiceCIDR is the range of ClusterIPs, or two of different families
	// separated by a comma. Empty: DefaultServiceCIDR.
	ServiceCIDR string
	// AdvertiseAddress is what the apiserver tells others about itself. It
	// still listens on 127.0.0.1 only. Empty: upstream's own choice, the
	// address of the default route, or 127.0.0.1 where there is none.
	AdvertiseAddress string
	// Logger hears of starts, stops and deaths; nil: nobody does.
	Logger *slog.Logger
	// EtcdOnly leaves the apiserver out.
	EtcdOnly bool
	// APIServerArgs are appended to kube-apiserver's flags, so they win.
	APIServerArgs []string
	// EtcdPort and APIServerPort are the ports to listen on; 0: any free one.
	EtcdPort, APIServerPort int
}

func (c Config) withDefaults() Config {
	if c.ServiceCIDR == "" {
		c.ServiceCIDR = DefaultServiceCIDR
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// validate names every problem, each with its field.
func (c Config) validate() error {
	var problems []error
	for cidr := range strings.SplitSeq(c.ServiceCIDR, ",") {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			problems = append(problems, fmt.Errorf("Config.ServiceCIDR: %q is not a range of addresses, as 10.0.0.0/16 is: %w", cidr, err))
		}
	}
	if c.AdvertiseAddress != "" {
		if _, err := netip.ParseAddr(c.AdvertiseAddress); err != nil {
			problems = append(problems, fmt.Errorf("Config.AdvertiseAddress: %q is not an IP address: %w", c.AdvertiseAddress, err))
		}
	}
	problems = append(problems, validPort("Config.EtcdPort", c.EtcdPort), validPort("Config.APIServerPort", c.APIServerPort))
	if c.EtcdPort != 0 && c.EtcdPort == c.APIServerPort {
		problems = append(problems, fmt.Errorf("Config.EtcdPort and Config.APIServerPort are both %d", c.EtcdPort))
	}
	return errors.Join(problems...)
}

func validPort(field string, port int) error {
	if port < 0 || port > 65535 {
		return fmt.Errorf("%s: %d is not a port: give 1 to 65535, or 0 for any free one", field, port)
	}
	return nil
}
