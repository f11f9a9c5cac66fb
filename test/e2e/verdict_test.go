package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// A zone whose nodes are all silent, and a port in use that is not allocated: the API and the
// command line give one verdict, with the worst problem first. So they do when two of three
// services are gone.
func TestGateway_OneVerdictWhileThingsAreBroken(t *testing.T) {
	cluster, kube := testkit.Cluster(t), testkit.Kube(t)
	silent := nodesWithZone(t, kube, "silent", "zone-dark", 3)
	alive := nodesWithZone(t, kube, "alive", "zone-lit", 3)
	page := testkit.FreeAddress(t)
	gateway := serve(t, cluster, "gateway", "--cluster=verdict", "--http-listen="+page)
	leasesvc := serve(t, cluster, "leasesvc", "--cluster=verdict", "--loops=*,node-health",
		"--node-monitor-grace-period=5s", "--node-startup-grace-period=5s")
	bootstrapsvc := serve(t, cluster, "bootstrapsvc", "--cluster=verdict", "--auto-repair=off")
	slicesvc := serve(t, cluster, "slicesvc", "--cluster=verdict")
	for _, server := range []*running{leasesvc, bootstrapsvc, slicesvc} {
		testkit.Eventually(t, 40*time.Second, server.ready)
	}
	beat(t, alive, leasesvc.grpc)
	port := nodePort(t, testkit.Namespace(t, kube))

	testkit.Eventually(t, 60*time.Second, func() error {
		freePort(t, port) // kube-apiserver allocates it again every three minutes
		reply, err := status("https://" + page)
		if err != nil {
			return err
		}
		return errors.Join(reply.has("STATE_FAILED", "ZONE_DISRUPTED", "zone-dark"),
			reply.has("STATE_FAILED", "NODES_UNKNOWN", "3 Nodes are silent"), reply.has("STATE_FAILED", "FINDINGS_OPEN", fmt.Sprint(port)))
	})
	checkSameVerdict(t, page, gateway.grpc, "ZONE_DISRUPTED")
	for _, name := range silent {
		if code, body, err := fetch("https://" + page + "/v1/nodes/" + name); err != nil || code != http.StatusOK || !strings.Contains(body, "HEALTH_UNKNOWN") {
			t.Errorf("node %s: %d %s (%v), want HEALTH_UNKNOWN", name, code, body, err)
		}
		code, body, err := fetch("https://" + page + "/v1/decisions?resources=nodes/" + name)
		if err != nil || code != http.StatusOK || !strings.Contains(body, "ACTION_NODE_MARKED_UNKNOWN") || strings.Contains(body, "no replica is registered") {
			t.Errorf("decisions about node %s: %d %s (%v), want that it was marked", name, code, body, err)
		}
	}
	code, body, err := fetch("https://" + page + "/v1/decisions?actions=ACTION_FINDING_OPENED&actions=ACTION_TERM_TAKEN")
	if err != nil || code != http.StatusOK || !strings.Contains(body, fmt.Sprint(port)) || !strings.Contains(body, "shards/slicesvc/0") {
		t.Errorf("decisions: %d %s (%v), want the finding about port %d and the terms", code, body, err, port)
	}

	leasesvc.stop(t, syscall.SIGKILL, 10*time.Second)
	bootstrapsvc.stop(t, syscall.SIGKILL, 10*time.Second)
	for _, state := range []string{"STATE_UNKNOWN", "STATE_FAILED"} { // before and after their keys in etcd are gone
		testkit.Eventually(t, 30*time.Second, func() error {
			reply, err := status("https://" + page)
			if err == nil && reply.Status.Verdict.State != state {
				err = fmt.Errorf("two of three services are gone, and the verdict is %s, want %s: %+v", reply.Status.Verdict.State, state, reply.Status.Verdict.Problems)
			}
			return err
		})
	}
	checkSameVerdict(t, page, gateway.grpc, "NO_REPLICA")
}

// has returns an error unless the verdict has the state and a problem with the code and the text.
func (a answer) has(state, code, text string) error {
	if a.Status.Verdict.State != state {
		return fmt.Errorf("the verdict is %s, want %s: %+v", a.Status.Verdict.State, state, a.Status.Verdict.Problems)
	}
	if !slices.ContainsFunc(a.Status.Verdict.Problems, func(p problem) bool {
		return p.Code == code && strings.Contains(p.Resource+" "+p.Message, text)
	}) {
		return fmt.Errorf("the verdict has no %s about %q: %+v", code, text, a.Status.Verdict.Problems)
	}
	return nil
}

// checkSameVerdict compares the verdict of the API with what `trivet status` prints, and its order.
func checkSameVerdict(t *testing.T, page, server, worst string) {
	t.Helper()
	reply, err := status("https://" + page)
	if err != nil {
		t.Fatal(err)
	}
	problems := reply.Status.Verdict.Problems
	if len(problems) == 0 || !slices.ContainsFunc(problems, func(p problem) bool { return p.Code == worst && p.Severity == problems[0].Severity }) {
		t.Errorf("%s is not among the worst problems: %+v", worst, problems)
	}
	rank := []string{"SEVERITY_ERROR", "SEVERITY_UNKNOWN", "SEVERITY_WARNING"}
	if !slices.IsSortedFunc(problems, func(a, b problem) int { return slices.Index(rank, a.Severity) - slices.Index(rank, b.Severity) }) {
		t.Errorf("the worst problem is not the first: %+v", problems)
	}
	for _, p := range problems {
		if p.Message == "" || p.Next == "" {
			t.Errorf("problem %+v has no reason or no next step", p)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	command := trivet(ctx, t, server, "status")
	output, err := command.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("trivet status: %v, want exit code 1", err)
	}
	if !strings.Contains(string(output), "FAILED") || !strings.Contains(string(output), problems[0].Message[:min(len(problems[0].Message), 30)]) {
		t.Errorf("trivet status shows neither FAILED nor %q:\n%s", problems[0].Message, output)
	}
}

// nodePort creates a Service with a node port.
func nodePort(t *testing.T, namespace string) int32 {
	t.Helper()
	service, err := testkit.Kube(t).CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "broken"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service.Spec.Ports[0].NodePort
}

// freePort removes a node port from those that kube-apiserver has allocated.
func freePort(t *testing.T, port int32) {
	t.Helper()
	const key = "/registry/ranges/servicenodeports"
	etcd := testkit.Etcd(t)
	stored, err := etcd.Get(t.Context(), key)
	if err != nil || len(stored.Kvs) != 1 {
		t.Fatalf("read %s: %v", key, err)
	}
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	object, _, err := codec.Decode(stored.Kvs[0].Value, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ports := object.(*corev1.RangeAllocation)
	bit := int(port - 30000)
	if place := len(ports.Data) - 1 - bit/8; place >= 0 {
		ports.Data[place] &^= 1 << (bit % 8)
	}
	encoded, err := runtime.Encode(codec, ports)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Put(t.Context(), key, string(encoded)); err != nil {
		t.Fatal(err)
	}
}
