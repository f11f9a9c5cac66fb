package bootstrapsvc

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"

	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// localServer is the kube-apiserver beside this replica.
type localServer struct {
	url *url.URL
	// port and address are where pods reach it. address is empty on a replica that is not a
	// sidecar.
	port    int32
	address hostaddress.Addresses
}

// errSharedURL: in a pod, the default of the kubeconfig is the Service, which leads to any
// kube-apiserver.
var errSharedURL = errors.New("--apiserver-url: the service account of this pod leads to the service default/kubernetes, " +
	"not to one kube-apiserver; give the URL of the one beside this replica, such as https://127.0.0.1:6443 " +
	"(a replica without one: --loops=*,-apiserver-probe and --apiserver-port)")

func findLocalServer(cfg Config, connection *rest.Config, isSidecar bool) (localServer, error) {
	server, err := parseAPIServerURL(cfg.APIServerURL)
	if err != nil {
		return localServer{}, fmt.Errorf("--apiserver-url: %w", err)
	}
	if server == nil {
		if server, _, err = rest.DefaultServerUrlFor(connection); err != nil {
			return localServer{}, fmt.Errorf("--apiserver-url: %w", err)
		}
		if isPodDefault(server) && (isSidecar || cfg.APIServerPort == 0) {
			return localServer{}, errSharedURL
		}
	}
	found := localServer{url: server}
	if found.port, err = portOf(cfg, server); err != nil {
		return localServer{}, err
	}
	if isSidecar {
		found.address, err = findAddresses(cfg, server)
	}
	return found, err
}

func isPodDefault(server *url.URL) bool {
	host := os.Getenv("KUBERNETES_SERVICE_HOST")
	return host != "" && server.Host == net.JoinHostPort(host, os.Getenv("KUBERNETES_SERVICE_PORT"))
}

func portOf(cfg Config, server *url.URL) (int32, error) {
	if cfg.APIServerPort != 0 {
		return int32(cfg.APIServerPort), nil
	}
	if server.Port() == "" {
		return 443, nil
	}
	port, err := strconv.ParseUint(server.Port(), 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("--apiserver-url: %s has no usable port", server)
	}
	return int32(port), nil
}

func findAddresses(cfg Config, server *url.URL) (hostaddress.Addresses, error) {
	ranges, err := parseServiceRanges(cfg.ServiceClusterIPRange)
	if err != nil {
		return hostaddress.Addresses{}, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	found, err := parseAdvertisedAddresses(cfg.AdvertiseAddress, cfg.DualStackEndpoints)
	if err != nil {
		return hostaddress.Addresses{}, fmt.Errorf("--apiserver-advertise-address: %w", err)
	}
	serviceRange := primaryOf(ranges)
	if !found.Primary.IsValid() {
		family := hostaddress.Any
		if serviceRange.IsValid() {
			family = hostaddress.FamilyOf(serviceRange.Addr())
		}
		if found, err = hostaddress.Find(server.Hostname(), family, cfg.DualStackEndpoints); err != nil {
			return hostaddress.Addresses{}, err
		}
	}
	if err := checkFamily(found.Primary, serviceRange); err != nil {
		return hostaddress.Addresses{}, fmt.Errorf("--apiserver-advertise-address: %w", err)
	}
	return found, nil
}
