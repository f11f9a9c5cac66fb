package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/trivet-dev/trivet/internal/atomicfile"
	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// serviceName is a name that the certificate of each kube-apiserver has.
	serviceName = "kubernetes.default.svc"
	// discoveryPeriod is the time between two reads of the endpoints, and discoveryRetry after a
	// failed one.
	discoveryPeriod = 5 * time.Minute
	discoveryRetry  = 15 * time.Second
	// maxEndpoints limits the addresses that are used.
	maxEndpoints      = 64
	maxDiscoveryBytes = 1 << 20

	endpointsFile = "apiservers.json"
	slicePath     = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
	endpointsPath = "/api/v1/namespaces/default/endpoints/kubernetes"
)

// discover follows the endpoints of the Service default/kubernetes until ctx ends. An empty list
// changes nothing, because a cluster without kube-apiservers does not answer.
func (p *Pool) discover(ctx context.Context) {
	warned := ""
	for {
		period := discoveryPeriod
		addresses, err := p.readEndpoints(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrNoCertificate):
			period = discoveryRetry
		case err != nil:
			period = discoveryRetry
			if err.Error() != warned {
				p.cfg.Logger.Warn("cannot read the endpoints of default/kubernetes; the known ones stay", "error", err)
			}
			warned = err.Error()
		default:
			warned = ""
			p.use(addresses)
		}
		backoff.Sleep(ctx, jittered(period))
	}
}

// use sets the endpoints if they differ from those in use, and stores them if they differ from the
// stored ones.
func (p *Pool) use(addresses []string) {
	p.mu.Lock()
	changed := !slices.Equal(addresses, p.endpoints)
	p.mu.Unlock()
	if changed {
		p.cfg.Logger.Info("endpoints of default/kubernetes have changed", "endpoints", addresses)
		p.setEndpoints(addresses)
	}
	if slices.Equal(addresses, p.loadEndpoints()) {
		return
	}
	if err := p.storeEndpoints(addresses); err != nil {
		p.cfg.Logger.Warn("cannot store the endpoints of default/kubernetes", "error", err)
	}
}

// readEndpoints reads the EndpointSlice, or the Endpoints if the node may not read the slice: a
// node may by default.
func (p *Pool) readEndpoints(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	var slice struct {
		Endpoints []struct {
			Addresses  []string `json:"addresses"`
			Conditions struct {
				Ready *bool `json:"ready"`
			} `json:"conditions"`
		} `json:"endpoints"`
		Ports []discoveredPort `json:"ports"`
	}
	code, err := p.readJSON(ctx, slicePath, &slice)
	if err == nil {
		var hosts []string
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				hosts = append(hosts, endpoint.Addresses...)
			}
		}
		return join(hosts, slice.Ports)
	}
	if code != http.StatusForbidden && code != http.StatusNotFound {
		return nil, err
	}
	var endpoints struct {
		Subsets []struct {
			Addresses []struct {
				IP string `json:"ip"`
			} `json:"addresses"`
			Ports []discoveredPort `json:"ports"`
		} `json:"subsets"`
	}
	if _, err := p.readJSON(ctx, endpointsPath, &endpoints); err != nil {
		return nil, err
	}
	var all []string
	for _, subset := range endpoints.Subsets {
		var hosts []string
		for _, address := range subset.Addresses {
			hosts = append(hosts, address.IP)
		}
		joined, err := join(hosts, subset.Ports)
		if err != nil {
			return nil, err
		}
		all = append(all, joined...)
	}
	return usable(all)
}

type discoveredPort struct {
	Name *string `json:"name"`
	Port *int32  `json:"port"`
}

// join returns host:port for the port https.
func join(hosts []string, ports []discoveredPort) ([]string, error) {
	for _, port := range ports {
		if port.Port == nil || port.Name != nil && *port.Name != "https" && *port.Name != "" {
			continue
		}
		var all []string
		for _, host := range hosts {
			all = append(all, net.JoinHostPort(host, strconv.Itoa(int(*port.Port))))
		}
		return usable(all)
	}
	return nil, errors.New("default/kubernetes has no port https")
}

// usable returns the valid addresses, ordered, each once, and limited.
func usable(addresses []string) ([]string, error) {
	valid := make([]string, 0, len(addresses))
	for _, address := range addresses {
		if parsed, err := netip.ParseAddrPort(address); err == nil && parsed.Port() != 0 && !parsed.Addr().IsUnspecified() && !parsed.Addr().IsMulticast() {
			valid = append(valid, parsed.String())
		}
	}
	slices.Sort(valid)
	valid = slices.Compact(valid)
	if len(valid) == 0 {
		return nil, errors.New("default/kubernetes has no usable address")
	}
	return valid[:min(len(valid), maxEndpoints)], nil
}

func (p *Pool) readJSON(ctx context.Context, path string, into any) (code int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes"+path, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := p.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDiscoveryBytes))
	if err != nil {
		return 0, fmt.Errorf("GET %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, fmt.Errorf("GET %s: %s", path, response.Status)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return response.StatusCode, fmt.Errorf("GET %s: %w", path, err)
	}
	return response.StatusCode, nil
}

// loadEndpoints returns the stored endpoints; none without discovery, or if the file is damaged.
func (p *Pool) loadEndpoints() []string {
	if !p.cfg.Discover {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(p.cfg.StateDir, endpointsFile))
	var addresses []string
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(text)).Decode(&addresses)
	}
	if err == nil {
		addresses, err = usable(addresses)
	}
	if err != nil {
		return nil
	}
	return addresses
}

func (p *Pool) storeEndpoints(addresses []string) error {
	text, err := json.Marshal(addresses)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(p.cfg.StateDir, endpointsFile), append(text, '\n'), 0o600)
}

func hostPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), "443")
}
