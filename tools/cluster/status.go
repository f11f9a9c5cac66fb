package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/nodecluster"
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
	relays, err := c.Relays()
	if err != nil {
		return errors.Join(problem, err)
	}
	ca, cert, key := c.Credentials()
	fmt.Fprintf(out, `
Page       %s
kubectl    export KUBECONFIG=%s
trivet     export TRIVET_SERVER=%s TRIVET_CA_FILE=%s TRIVET_CERT_FILE=%s TRIVET_KEY_FILE=%s

Break it   cluster break power-off w1 | power-on w1 | unplug w1 | plug w1 | stop-kubelet w2 | start-kubelet w2
           cluster break kill cp1 leasesvc | freeze cp2 kube-apiserver | continue cp2 kube-apiserver
End it     cluster down
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
		fmt.Fprintln(table, "\nNODE\tREADY\t\tTAINTS")
		for i := range nodes.Items {
			fmt.Fprintf(table, "%s\t%s\t\t%s\n", nodes.Items[i].Name, ready(nodes.Items[i].Status.Conditions), taints(&nodes.Items[i]))
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
