package bootstrapsvc

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"

	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/advertise"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostnet"
)

// apiServer is the kube-apiserver beside this replica.
type apiServer struct {
	url *url.URL
	// port is where pods reach it.
	port int32
	// address is where pods reach it; the zero Addr while nobody asked for it.
	address netip.Addr
}

// errSharedURL: in a pod, the kubeconfig's default leads to the Service, so to any kube-apiserver, not to one.
var errSharedURL = errors.New("--apiserver-url: the service account of this pod leads to the service default/kubernetes, " +
	"not to one kube-apiserver; give the URL of the one beside this replica, such as https://127.0.0.1:6443 " +
	"(a replica without one: --loops=*,-apiserver-probe and --apiserver-port)")

// findAPIServer works out which kube-apiserver is meant. sidecar is whether it will be probed and published.
func findAPIServer(cfg Config, connection *rest.Config, sidecar bool) (apiServer, error) {
	server, err := cfg.apiServerURL()
	if err != nil {
		return apiServer{}, fmt.Errorf("--apiserver-url: %w", err)
	}
	if server == nil {
		if server, _, err = rest.DefaultServerUrlFor(connection); err != nil {
			return apiServer{}, fmt.Errorf("--apiserver-url: %w", err)
		}
		if isPodDefault(server) && (sidecar || cfg.APIServerPort == 0) {
			return apiServer{}, errSharedURL
		}
	}
	found := apiServer{url: server}
	if found.port, err = portOf(cfg, server); err != nil {
		return apiServer{}, err
	}
	if sidecar {
		found.address, err = addressOf(cfg, server)
	}
	return found, err
}

// isPodDefault tells whether the URL is the one that every pod finds in its environment.
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

func addressOf(cfg Config, server *url.URL) (netip.Addr, error) {
	serviceRange, err := cfg.serviceRange()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	address, err := cfg.advertiseAddress()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--apiserver-advertise-address: %w", err)
	}
	if !address.IsValid() {
		if address, err = ownAddress(server, serviceRange); err != nil {
			return netip.Addr{}, err
		}
	}
	if err := checkFamily(address, serviceRange); err != nil {
		return netip.Addr{}, fmt.Errorf("--apiserver-advertise-address: %w", err)
	}
	return address, nil
}

func ownAddress(server *url.URL, serviceRange netip.Prefix) (netip.Addr, error) {
	interfaces, err := hostnet.Interfaces()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w; set --apiserver-advertise-address", err)
	}
	family := advertise.Any
	if serviceRange.IsValid() {
		family = advertise.FamilyOf(serviceRange.Addr())
	}
	return advertise.Choose(server.Hostname(), interfaces, family)
}
