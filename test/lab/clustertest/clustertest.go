// Package clustertest is a kube-apiserver for tests of commands that reach a gateway through it: it
// lists Pods, has the ConfigMap with the authorities, issues tokens, and forwards ports over
// WebSocket and SPDY.
package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilportforward "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Namespace is where the gateway runs.
const Namespace = "trivet-system"

// Cluster is a kube-apiserver with Pods of the gateway.
type Cluster struct {
	server *httptest.Server

	mu          sync.Mutex // guards the fields below
	pods        map[string]*pod
	authorities *corev1.ConfigMap
	forbidden   []string // methods and path suffixes
	noWebSocket bool
	upgrades    []string
	tokens      []authenticationv1.TokenRequest
	tokenLife   time.Duration
	bearers     []string
}

// pod is a Pod and what its ports are.
type pod struct {
	ready       bool
	backends    map[string]string // address by name of the port
	connections []io.Closer
}

// New serves a cluster until the test ends.
func New(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{pods: map[string]*pod{}, tokenLife: time.Hour}
	mux := http.NewServeMux()
	base := "/api/v1/namespaces/{namespace}/"
	mux.HandleFunc("GET "+base+"pods", c.listPods)
	mux.HandleFunc("GET "+base+"configmaps/trivet-ca", c.getAuthorities)
	mux.HandleFunc("POST "+base+"serviceaccounts/{name}/token", c.issueToken)
	mux.HandleFunc(base+"pods/{pod}/portforward", c.forward)
	c.server = httptest.NewTLSServer(c.authorized(mux))
	t.Cleanup(func() {
		for _, name := range c.podNames() {
			c.DeletePod(name)
		}
		c.server.CloseClientConnections()
		c.server.Close()
	})
	return c
}

// Kubeconfig writes a kubeconfig with a user, and returns its path. The context is "test".
func (c *Cluster) Kubeconfig(t testing.TB, user *clientcmdapi.AuthInfo) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.server.URL, InsecureSkipTLSVerify: true}
	config.AuthInfos["test"] = user
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatalf("write the kubeconfig: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatalf("protect the kubeconfig: %v", err)
	}
	return file
}

// SetPod adds or replaces a Pod, whose ports are the addresses of local servers.
func (c *Cluster) SetPod(name string, ready bool, backends map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[name] = &pod{ready: ready, backends: backends}
}

// DeletePod deletes a Pod and ends its connections.
func (c *Cluster) DeletePod(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gone := c.pods[name]; gone != nil {
		for _, connection := range gone.connections {
			_ = connection.Close()
		}
	}
	delete(c.pods, name)
}

// SetAuthorities sets the ConfigMap with the authorities; nil deletes it.
func (c *Cluster) SetAuthorities(pem []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.authorities = nil
	if pem != nil {
		c.authorities = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "trivet-ca", Namespace: Namespace}, Data: map[string]string{"ca.crt": string(pem)},
		}
	}
}

// Forbid refuses requests whose method and path end so, such as "GET /pods".
func (c *Cluster) Forbid(requests ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forbidden = requests
}

// RefuseWebSockets answers WebSockets as a proxy does that does not know them.
func (c *Cluster) RefuseWebSockets() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noWebSocket = true
}

// SetTokenLife sets the lifetime of later tokens.
func (c *Cluster) SetTokenLife(life time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokenLife = life
}

// Upgrades returns "websocket POD" or "spdy POD" for each port-forward, in order.
func (c *Cluster) Upgrades() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.upgrades)
}

// TokenRequests returns the requests for tokens, in order. The n-th token is "token-n".
func (c *Cluster) TokenRequests() []authenticationv1.TokenRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.tokens)
}

// Bearers returns the tokens that kube-apiserver received.
func (c *Cluster) Bearers() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.bearers)
}

func (c *Cluster) podNames() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for name := range c.pods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *Cluster) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		if bearer, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); found {
			c.bearers = append(c.bearers, bearer)
		}
		refused := slices.ContainsFunc(c.forbidden, func(request string) bool {
			method, suffix, _ := strings.Cut(request, " ")
			return r.Method == method && strings.HasSuffix(r.URL.Path, suffix)
		})
		c.mu.Unlock()
		if refused {
			writeError(w, apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", fmt.Errorf("user test may not %s %s", r.Method, r.URL.Path)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (c *Cluster) listPods(w http.ResponseWriter, r *http.Request) {
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	if r.URL.Query().Get("labelSelector") == "app.kubernetes.io/name=gateway" && r.PathValue("namespace") == Namespace {
		for _, name := range c.podNames() {
			list.Items = append(list.Items, c.pod(name))
		}
	}
	write(w, http.StatusOK, list)
}

func (c *Cluster) pod(name string) corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	object := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	var container corev1.Container
	for port, address := range c.pods[name].backends {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: port, ContainerPort: portNumber(address)})
	}
	object.Spec.Containers = []corev1.Container{container}
	status := corev1.ConditionFalse
	if c.pods[name].ready {
		status = corev1.ConditionTrue
	}
	object.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	return object
}

func portNumber(address string) int32 {
	_, port, _ := net.SplitHostPort(address)
	number, _ := strconv.ParseInt(port, 10, 32)
	return int32(number)
}

func (c *Cluster) getAuthorities(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	authorities := c.authorities
	c.mu.Unlock()
	if authorities == nil {
		writeError(w, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "trivet-ca"))
		return
	}
	authorities.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	write(w, http.StatusOK, authorities)
}

func (c *Cluster) issueToken(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	request, ok := object.(*authenticationv1.TokenRequest)
	if err != nil || !ok {
		writeError(w, apierrors.NewBadRequest(fmt.Sprintf("%T: %v", object, err)))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	request.Namespace, request.Name = r.PathValue("namespace"), r.PathValue("name")
	c.tokens = append(c.tokens, *request)
	answer := &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Status: authenticationv1.TokenRequestStatus{
			Token: fmt.Sprintf("token-%d", len(c.tokens)), ExpirationTimestamp: metav1.NewTime(time.Now().Add(c.tokenLife)),
		},
	}
	write(w, http.StatusCreated, answer)
}

func (c *Cluster) forward(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("pod")
	c.mu.Lock()
	target, noWebSocket := c.pods[name], c.noWebSocket
	c.mu.Unlock()
	if target == nil {
		writeError(w, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name))
		return
	}
	isWebSocket := websocket.IsWebSocketUpgrade(r)
	if isWebSocket && noWebSocket {
		http.Error(w, "the proxy knows no WebSockets", http.StatusBadRequest)
		return
	}
	streams := make(chan httpstream.Stream, 2)
	connection, err := accept(w, r, isWebSocket, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if err != nil {
		return // the client has the answer
	}
	c.mu.Lock()
	c.upgrades = append(c.upgrades, map[bool]string{true: "websocket ", false: "spdy "}[isWebSocket]+name)
	target.connections = append(target.connections, connection)
	c.mu.Unlock()
	defer func() { _ = connection.Close() }() // it may be closed
	var data, failures httpstream.Stream
	for data == nil || failures == nil {
		select {
		case stream := <-streams:
			if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				failures = stream
			} else {
				data = stream
			}
		case <-connection.CloseChan():
			return
		}
	}
	relay(data, failures)
	<-connection.CloseChan() // the client reads what is left, and closes
}

// accept answers an upgrade as kube-apiserver does.
func accept(w http.ResponseWriter, r *http.Request, isWebSocket bool, handle httpstream.NewStreamHandler) (httpstream.Connection, error) {
	if !isWebSocket {
		if _, err := httpstream.Handshake(r, w, []string{utilportforward.PortForwardV1Name}); err != nil {
			return nil, err
		}
		connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, handle)
		if connection == nil {
			return nil, fmt.Errorf("no upgrade to SPDY")
		}
		return connection, nil
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{utilportforward.WebsocketsSPDYTunnelingPortForwardV1}}
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, err
	}
	return spdy.NewServerConnection(portforward.NewTunnelingConnectionWithLogger(klog.FromContext(r.Context()), socket), handle)
}

// relay copies between a stream and the port on this machine, as a kubelet does.
func relay(data, failures httpstream.Stream) {
	backend, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", data.Headers().Get(corev1.PortHeader)))
	if err != nil {
		fmt.Fprintf(failures, "error forwarding port: %v", err)
		_ = failures.Close()
		return
	}
	_ = failures.Close()
	var copies sync.WaitGroup
	copies.Go(func() {
		_, _ = io.Copy(backend, data)
		_ = backend.Close()
	})
	copies.Go(func() {
		_, _ = io.Copy(data, backend)
		_ = data.Close()
	})
	copies.Wait()
}

func write(w http.ResponseWriter, code int, object runtime.Object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

func writeError(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	write(w, int(status.Code), &status)
}
