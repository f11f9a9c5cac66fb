package bootstrapsvc

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"

	"k8s.io/client-go/rest"
)

// apiServer is the kube-apiserver beside this replica.
type apiServer struct {
	url *url.URL
	// port is where pods reach it.
	port int32
	// at is where pods reach it; nothing while nobody asked for it.
	at advertised
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
		found.at, err = addressesOf(cfg, server)
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
