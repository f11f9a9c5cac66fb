package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

const (
	pageLog      = "page.log"
	pageTimeout  = 30 * time.Second
	questionTime = 10 * time.Second
)

// startPage runs `trivet dashboard`, which adds the administrator's credentials for a browser that
// has its key.
func startPage(ctx context.Context, c *nodecluster.Cluster, trivet string) error {
	relays, err := c.Relays()
	if err != nil {
		return err
	}
	output, err := os.OpenFile(filepath.Join(c.Dir(), pageLog), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log of the page: %w", err)
	}
	defer output.Close()
	ca, cert, key := c.Credentials()
	command := exec.Command(trivet, "dashboard", "--no-open",
		"--server="+relays.Gateway, "--http-server="+relays.Page, "--server-name=gateway",
		"--ca-file="+ca, "--cert-file="+cert, "--key-file="+key)
	command.Dir = "/"
	command.Stdout, command.Stderr = output, output
	if err := c.StartCompanion("page", command); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	for pageURL(c) == "" {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no page: see %s", output.Name())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

var anURL = regexp.MustCompile(`http://\S+`)

// pageURL has a key that gives the administrator's rights; only root reads the file.
func pageURL(c *nodecluster.Cluster) string {
	text, err := os.ReadFile(filepath.Join(c.Dir(), pageLog))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(anURL.Find(text)))
}

// printStatus asks the first kube-apiserver that answers.
func printStatus(ctx context.Context, c *nodecluster.Cluster, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tADDRESS\tPOWER\tLOGS")
	for _, node := range c.Nodes() {
		power := "off"
		if node.Running() {
			power = "on"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", node.Name, node.Address, power, node.LogDir())
	}
	problem := errors.Join(printObjects(ctx, c, table), table.Flush())
	if c.WithoutTrivet() {
		pki := filepath.Join(c.Dir(), "pki")
		fmt.Fprintf(out, `
kubectl    export KUBECONFIG=%s
Install    docs/install.md, with image docker.io/library/trivet:devel, which all nodes have, etcd at https://%s:2379,
           --etcd-ca-cert %s --etcd-ca-key %s
End it     trivet-lab cluster down
`, c.Kubeconfig(), c.Nodes()[0].Address, filepath.Join(pki, "etcd-ca.crt"), filepath.Join(pki, "etcd-ca.key"))
		return problem
	}
	relays, err := c.Relays()
	if err != nil {
		return errors.Join(problem, err)
	}
	ca, cert, key := c.Credentials()
	fmt.Fprintf(out, `
Page       %s
kubectl    export KUBECONFIG=%s
trivet     export TRIVET_SERVER=%s TRIVET_CA_FILE=%s TRIVET_CERT_FILE=%s TRIVET_KEY_FILE=%s

Break it   trivet-lab cluster break power-off w1 | power-on w1 | unplug w1 | plug w1 | stop-kubelet w2 | start-kubelet w2
           trivet-lab cluster break kill cp1 leasesvc | freeze cp2 kube-apiserver | continue cp2 kube-apiserver
End it     trivet-lab cluster down
`, pageURL(c), c.Kubeconfig(), relays.Gateway, ca, cert, key)
	return problem
}

func printObjects(ctx context.Context, c *nodecluster.Cluster, table io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	var problems []error
	for _, node := range c.Nodes() {
		if !node.Running() {
			continue
		}
		client, err := c.Client(node)
		if err != nil {
			return err
		}
		pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			problems = append(problems, err)
			continue
		}
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			problems = append(problems, err)
			continue
		}
		var healths map[string]*nodev1.NodeHealth
		var silent error
		if !c.WithoutTrivet() {
			healths, silent = nodeHealths(ctx, c)
		}
		fmt.Fprintln(table, "\nNODE\tREADY\tAGENT\tKUBELET SEEN\tTAINTS")
		for i := range nodes.Items {
			name := nodes.Items[i].Name
			health := healths["nodes/"+name]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", name, ready(nodes.Items[i].Status.Conditions),
				cmp.Or(health.GetAgent().GetMode(), "-"), kubeletSeen(health), taints(&nodes.Items[i]))
		}
		if silent != nil {
			fmt.Fprintln(table, "leasesvc does not say the agents:", silent)
		}
		fmt.Fprintln(table, "\nNAMESPACE\tPOD\tPHASE\tNODE")
		for i := range pods.Items {
			pod := &pods.Items[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", pod.Namespace, pod.Name, pod.Status.Phase, pod.Spec.NodeName)
		}
		return nil
	}
	return errors.Join(append([]error{errors.New("no kube-apiserver answers")}, problems...)...)
}

// nodeHealths returns what leasesvc says of the nodes, by their resource names.
func nodeHealths(ctx context.Context, c *nodecluster.Cluster) (map[string]*nodev1.NodeHealth, error) {
	config, err := c.TLSConfig("leasesvc")
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///%s:7601", c.Nodes()[0].Address), grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, questionTime/2)
	defer cancel()
	response, err := nodev1.NewNodeHealthServiceClient(conn).ListNodeHealth(ctx, &nodev1.ListNodeHealthRequest{})
	if err != nil {
		return nil, err
	}
	healths := map[string]*nodev1.NodeHealth{}
	for _, health := range response.GetNodes() {
		healths[health.GetName()] = health
	}
	return healths, nil
}

// kubeletSeen returns the age of the kubelet's own last signal.
func kubeletSeen(health *nodev1.NodeHealth) string {
	for _, signal := range health.GetSignals() {
		if source := signal.GetSource(); signal.GetSeenTime() != nil &&
			source != nodev1.SignalSource_SIGNAL_SOURCE_AGENT && source != nodev1.SignalSource_SIGNAL_SOURCE_NONE {
			return time.Since(signal.GetSeenTime().AsTime()).Round(100*time.Millisecond).String() + " ago"
		}
	}
	return "-"
}

func ready(conditions []corev1.NodeCondition) corev1.ConditionStatus {
	for _, condition := range conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}

func taints(node *corev1.Node) string {
	var text bytes.Buffer
	for _, taint := range node.Spec.Taints {
		fmt.Fprintf(&text, "%s:%s ", taint.Key, taint.Effect)
	}
	return text.String()
}
