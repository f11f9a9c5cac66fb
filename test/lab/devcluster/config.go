package devcluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
)

// DefaultServiceCIDR is the default range of ClusterIPs, with 65,000 addresses.
const DefaultServiceCIDR = "10.0.0.0/16"

// Config describes a cluster. The zero value is a whole cluster on free ports in a temporary
// directory.
type Config struct {
	// AssetsDir has the binaries etcd and kube-apiserver. The environment variable
	// KUBEBUILDER_ASSETS overrides it. Empty: the nearest ".assets" in the working directory, the
	// executable's directory or one above them.
	AssetsDir string
	// DataDir has data, credentials and logs. It is created if absent. A later Start uses the data
	// of etcd in it; credentials are new at every Start. Empty: a temporary directory, removed by
	// Stop.
	DataDir string
	// ServiceCIDR is the range of ClusterIPs, or two of different families separated by a comma.
	// Empty: DefaultServiceCIDR.
	ServiceCIDR string
	// AdvertiseAddress is the advertised address of the apiserver, which still listens on 127.0.0.1
	// only. Empty: upstream's default, the address of the default route, or 127.0.0.1 without a
	// default route.
	AdvertiseAddress string
	// Logger logs starts and deaths of servers; nil discards them.
	Logger *slog.Logger
	// EtcdOnly starts no apiserver.
	EtcdOnly bool
	// APIServerArgs are appended to kube-apiserver's flags and override them.
	APIServerArgs []string
	// EtcdMembers is the number of members of etcd. 0: one. Several members have free ports and a
	// temporary directory, because each Start gives them new addresses.
	EtcdMembers int
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
			problems = append(problems, fmt.Errorf("Config.ServiceCIDR: %q is not a range of addresses such as 10.0.0.0/16: %w", cidr, err))
		}
	}
	if c.AdvertiseAddress != "" {
		if _, err := netip.ParseAddr(c.AdvertiseAddress); err != nil {
			problems = append(problems, fmt.Errorf("Config.AdvertiseAddress: %q is not an IP address: %w", c.AdvertiseAddress, err))
		}
	}
	if c.EtcdMembers < 0 || c.EtcdMembers > 1 && (c.DataDir != "" || c.EtcdPort != 0) {
		problems = append(problems, fmt.Errorf("Config.EtcdMembers: %d members cannot start with Config.DataDir %q and Config.EtcdPort %d", c.EtcdMembers, c.DataDir, c.EtcdPort))
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
