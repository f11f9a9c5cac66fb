package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// exec runs a command in a Pod's container, as kubectl exec does.
func (f *fixture) exec(ctx context.Context, pod *corev1.Pod, command ...string) (string, error) {
	// An executor dials on its own, so it uses the relay.
	config, err := clientcmd.BuildConfigFromFlags("", f.Kubeconfig())
	if err != nil {
		return "", err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	url := kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return "", fmt.Errorf("%w: %s", err, &stderr)
	}
	return stdout.String(), nil
}

// dial connects to a server of Trivet as an administrator, at an address of the cluster.
func (f *fixture) dial(server, address string) (*grpc.ClientConn, error) {
	config, err := f.TLSConfig(server)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return f.DialContext(ctx, "tcp", address) }))
}

const (
	leasesvcAddress = "10.77.0.11:7601"
	gatewayAddress  = "10.77.0.11:7600"
)

// lease returns what leasesvc knows of a node.
func (f *fixture) lease(t *testing.T, node string) *leasev1.Lease {
	t.Helper()
	conn, err := f.dial("leasesvc", leasesvcAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	response, err := leasev1.NewLeaseServiceClient(conn).GetLease(ctx, &leasev1.GetLeaseRequest{Name: leaseName(node)})
	if err != nil {
		t.Fatal(err)
	}
	return response.GetLease()
}

// nodeHealth returns what leasesvc believes of a node.
func (f *fixture) nodeHealth(ctx context.Context, node string) (*nodev1.NodeHealth, error) {
	conn, err := f.dial("leasesvc", leasesvcAddress)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	response, err := nodev1.NewNodeHealthServiceClient(conn).GetNodeHealth(ctx, &nodev1.GetNodeHealthRequest{Name: "nodes/" + node})
	return response.GetNode(), err
}

func leaseName(node string) string {
	return "namespaces/" + corev1.NamespaceNodeLease + "/leases/" + node
}

// usage is what a process has used.
type usage struct {
	pid int
	cpu time.Duration
	// memKB is resident, anonKB of it not pages of the program's file, which are shared.
	memKB, anonKB int
}

// agentUsage reads the usage of the agent of a node, a process in a real container.
func (f *fixture) agentUsage(t *testing.T, node string) usage {
	t.Helper()
	processes, err := f.node(t, node).Processes("trivet-agent")
	if err != nil || len(processes) != 1 {
		t.Fatalf("agents of node %s: %v, %v; want one", node, processes, err)
	}
	u := usage{pid: processes[0]}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", u.pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads of the agent of %s: %v", node, err)
	}
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		ran, _, _ := strings.Cut(string(text), " ")
		nanoseconds, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		u.cpu += time.Duration(nanoseconds)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", u.pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		for name, into := range map[string]*int{"VmRSS:": &u.memKB, "RssAnon:": &u.anonKB} {
			if value, found := strings.CutPrefix(line, name); found {
				if _, err := fmt.Sscanf(value, "%d kB", into); err != nil {
					t.Fatalf("%s %v", line, err)
				}
			}
		}
	}
	return u
}
