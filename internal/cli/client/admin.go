package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/cli/portforward"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// adminPort is the name of the port of admin servers in Pods.
const adminPort = "admin"

// Replica is one server process.
type Replica struct {
	// Service and Name identify it, for example "slicesvc" and the name of its Pod.
	Service, Name string

	pod     *corev1.Pod // nil without a cluster
	address string      // of its admin server, without a cluster
}

// Admin reaches the admin servers of all replicas: through kube-apiserver in a cluster, else at the
// addresses that the gateway knows. It is safe for concurrent use.
type Admin struct {
	link *link
	pods *portforward.Gateway // nil without a cluster
}

// Admin returns the client of the admin servers. It fails if there are no credentials.
func (g *Gateway) Admin() (*Admin, error) {
	l, err := g.open()
	if err != nil {
		return nil, err
	}
	a := &Admin{link: l}
	if g.Server == "" {
		access, err := g.access()
		if err != nil {
			return nil, err
		}
		a.pods = portforward.New(access.REST, access.Kube, g.Namespace)
	}
	return a, nil
}

// Replicas returns the replicas, ordered: those whose Pods run, or those of the status of the
// gateway, which is not used in a cluster and may be nil then.
func (a *Admin) Replicas(ctx context.Context, status *gatewayv1.ClusterStatus) ([]Replica, error) {
	var replicas []Replica
	if a.pods != nil {
		pods, err := a.pods.Servers(ctx, adminPort)
		if err != nil {
			return nil, err
		}
		for i := range pods {
			replicas = append(replicas, Replica{Service: pods[i].Labels["app.kubernetes.io/name"], Name: pods[i].Name, pod: &pods[i]})
		}
	} else {
		for _, service := range status.GetServices() {
			for _, replica := range service.GetReplicas() {
				member := replica.GetStatus().GetReplica()
				replicas = append(replicas, Replica{Service: member.GetService(), Name: member.GetId(), address: member.GetAdminAddress()})
			}
		}
	}
	slices.SortFunc(replicas, func(x, y Replica) int {
		return strings.Compare(x.Service+"/"+x.Name, y.Service+"/"+y.Name)
	})
	return replicas, nil
}

// Client returns an HTTP client of one replica, for URLs with the host "replica". The caller closes
// its idle connections.
func (a *Admin) Client(replica Replica) *http.Client {
	return &http.Client{Transport: &adminTransport{admin: a, scheme: a.scheme(), transport: &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dial(ctx, replica) },
		DialTLSContext:  func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dialTLS(ctx, replica) },
		IdleConnTimeout: idleTimeout,
		MaxConnsPerHost: 2,
	}}}
}

func (a *Admin) scheme() string {
	if a.link.tls == nil {
		return "http"
	}
	return "https"
}

func (a *Admin) dial(ctx context.Context, replica Replica) (net.Conn, error) {
	if replica.pod != nil {
		return a.pods.DialPod(ctx, *replica.pod, adminPort)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", replica.address)
}

// dialTLS requires a certificate with the name of the service, as servers do of each other.
func (a *Admin) dialTLS(ctx context.Context, replica Replica) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	config, err := a.link.tls(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := a.dial(ctx, replica)
	if err != nil {
		return nil, err
	}
	config.ServerName, config.NextProtos = replica.Service, []string{"http/1.1"}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", replica.Name, err), conn.Close())
	}
	return secured, nil
}

// adminTransport adds the credentials of the person.
type adminTransport struct {
	admin     *Admin
	scheme    string
	transport *http.Transport
}

// RoundTrip sends a request.
func (t *adminTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.URL.Scheme, request.URL.Host, request.Host = t.scheme, "localhost", "localhost" // a server on loopback refuses other names
	if t.admin.link.token != nil {
		token, err := t.admin.link.token(request.Context())
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return t.transport.RoundTrip(request)
}

// CloseIdleConnections ends the unused connections.
func (t *adminTransport) CloseIdleConnections() { t.transport.CloseIdleConnections() }

var (
	// ErrNoPath is the error of [Ask] for a path that the server does not have.
	ErrNoPath = errors.New("the server has no such path")
	// ErrFailed is wrapped if the server answers that something failed, as /readyz does. The body
	// says what.
	ErrFailed = errors.New("the server answers that it failed")
)

// Ask sends a request to a path of a replica's admin server, and returns the body of the answer,
// limit bytes at most. Another answer than 200 is an error.
func Ask(ctx context.Context, to *http.Client, method, path string, limit int64) (body []byte, cut bool, err error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://replica"+path, nil)
	if err != nil {
		return nil, false, err
	}
	response, err := to.Do(request)
	if err != nil {
		return nil, false, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, false, err
	}
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, false, ErrNoPath
	case http.StatusInternalServerError:
		return body[:min(int64(len(body)), limit)], false, fmt.Errorf("%w: %s", ErrFailed, strings.TrimSpace(string(body[:min(len(body), 300)])))
	default:
		return nil, false, fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body[:min(len(body), 300)])))
	}
	if int64(len(body)) > limit {
		return body[:limit], true, nil
	}
	return body, false, nil
}
