package replicas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
)

const (
	// grpcPort is the name of the port of leasesvc's Service.
	grpcPort = "grpc"
	// maxListBytes bounds the answer of kube-apiserver.
	maxListBytes = 4 << 20
	// maxErrorBytes bounds what is shown of an error.
	maxErrorBytes = 512
)

// EndpointSlices is a Source that reads the EndpointSlices of a Service.
type EndpointSlices struct {
	// Namespace and Service name the Service.
	Namespace, Service string
	// Client sends requests to kube-apiserver with the credentials of the node; Server is its URL.
	Client *http.Client
	Server *url.URL
}

// String implements Source.
func (s EndpointSlices) String() string { return "service " + s.Namespace + "/" + s.Service }

// list is what is read of an EndpointSliceList of discovery.k8s.io/v1.
type list struct {
	Items []struct {
		AddressType string     `json:"addressType"`
		Endpoints   []endpoint `json:"endpoints"`
		Ports       []port     `json:"ports"`
	} `json:"items"`
}

type endpoint struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready *bool `json:"ready"`
	} `json:"conditions"`
}

type port struct {
	Name *string `json:"name"`
	Port *int32  `json:"port"`
}

// Lookup implements Source. If no endpoint is ready, it returns all: a replica that waits for its
// shard is not ready.
func (s EndpointSlices) Lookup(ctx context.Context) ([]string, error) {
	target := s.Server.JoinPath("/apis/discovery.k8s.io/v1/namespaces", s.Namespace, "endpointslices")
	// resourceVersion 0 reads the cache of kube-apiserver.
	target.RawQuery = url.Values{"labelSelector": {"kubernetes.io/service-name=" + s.Service}, "resourceVersion": {"0"}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := s.Client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read EndpointSlices: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
		return nil, fmt.Errorf("read EndpointSlices: kube-apiserver answers %s: %q", response.Status, why)
	}
	var found list
	if err := json.NewDecoder(io.LimitReader(response.Body, maxListBytes)).Decode(&found); err != nil {
		return nil, fmt.Errorf("decode EndpointSlices: %w", err)
	}
	ready, others := found.addresses()
	switch {
	case len(ready) > 0:
		return ready, nil
	case len(others) > 0:
		return others, nil
	}
	return nil, errors.New("the Service " + s.Namespace + "/" + s.Service + " has no endpoints")
}

// addresses returns the addresses of the ready endpoints and those of the others.
func (l *list) addresses() (ready, others []string) {
	for _, slice := range l.Items {
		number := grpcPortOf(slice.Ports)
		if slice.AddressType != "IPv4" && slice.AddressType != "IPv6" || number == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			for _, address := range e.Addresses {
				if _, err := netip.ParseAddr(address); err != nil {
					continue
				}
				target := net.JoinHostPort(address, strconv.Itoa(int(number)))
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					ready = append(ready, target)
				} else {
					others = append(others, target)
				}
			}
		}
	}
	return ready, others
}

// grpcPortOf returns the port with the name "grpc", or the only port; 0 if there is none.
func grpcPortOf(ports []port) int32 {
	for _, p := range ports {
		if p.Port != nil && p.Name != nil && *p.Name == grpcPort {
			return *p.Port
		}
	}
	if len(ports) == 1 && ports[0].Port != nil {
		return *ports[0].Port
	}
	return 0
}
