package clusterstate

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/portforward"
)

const (
	// serviceLabel says what a Pod of deploy/ runs.
	serviceLabel = "app.kubernetes.io/name"
	// maxLineBytes bounds what is read of a log, and maxLogs how many logs are read.
	maxLineBytes, maxLogs = 2 << 10, 10
)

// ownPods are what Pods of workloads of Trivet run.
func ownPods() []string { return append(certs.Servers(), "trivet-agent", "etcd") }

// Workloads reads the workloads of Trivet in a namespace with their Pods.
func (k *Kube) Workloads(ctx context.Context, namespace string) ([]diagnosis.Workload, error) {
	apps := k.Client.AppsV1()
	deployments, deploymentsErr := apps.Deployments(namespace).List(ctx, metav1.ListOptions{})
	stateful, statefulErr := apps.StatefulSets(namespace).List(ctx, metav1.ListOptions{})
	daemons, daemonsErr := apps.DaemonSets(namespace).List(ctx, metav1.ListOptions{})
	pods, podsErr := k.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err := errors.Join(deploymentsErr, statefulErr, daemonsErr, podsErr); err != nil {
		return nil, err
	}
	var found []diagnosis.Workload
	logs := maxLogs
	add := func(w diagnosis.Workload, selector *metav1.LabelSelector, template corev1.PodTemplateSpec) {
		w.Service = template.Labels[serviceLabel]
		matches, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || !slices.Contains(ownPods(), w.Service) {
			return
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; isPresent(pod) && matches.Matches(labels.Set(pod.Labels)) {
				w.Pods = append(w.Pods, k.workloadPod(ctx, pod, &logs))
			}
		}
		found = append(found, w)
	}
	for _, d := range deployments.Items {
		w := diagnosis.Workload{Kind: "Deployment", Name: d.Name, Wanted: replicas(d.Spec.Replicas)}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				w.Problem = c.Message
			}
		}
		add(w, d.Spec.Selector, d.Spec.Template)
	}
	for _, s := range stateful.Items {
		add(diagnosis.Workload{Kind: "StatefulSet", Name: s.Name, Wanted: replicas(s.Spec.Replicas)}, s.Spec.Selector, s.Spec.Template)
	}
	for _, d := range daemons.Items {
		add(diagnosis.Workload{Kind: "DaemonSet", Name: d.Name, Wanted: int(d.Status.DesiredNumberScheduled)}, d.Spec.Selector, d.Spec.Template)
	}
	return found, nil
}

func replicas(wanted *int32) int {
	if wanted == nil {
		return 1
	}
	return int(*wanted)
}

// isPresent reports whether a Pod runs or is to run.
func isPresent(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// workloadPod returns what is known of a Pod. It reads the log of a container that fails, while
// there are logs left to read.
func (k *Kube) workloadPod(ctx context.Context, pod *corev1.Pod, logs *int) diagnosis.WorkloadPod {
	found := diagnosis.WorkloadPod{Name: pod.Name}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			return found
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			found.Problem, found.Stuck = "it is not scheduled: "+c.Message, true
			return found
		}
	}
	found.Problem = "it is not ready"
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		problem, stuck, failed := containerProblem(c)
		if problem == "" {
			continue
		}
		found.Problem, found.Stuck = fmt.Sprintf("container %s %s", c.Name, problem), stuck
		if failed && *logs > 0 {
			*logs--
			found.LastLine = k.lastLine(ctx, pod, c)
		}
		return found
	}
	return found
}

// containerProblem returns why a container is not ready, whether it does not help to wait, and
// whether the container has failed, so that its log says why.
func containerProblem(c corev1.ContainerStatus) (problem string, stuck, failed bool) {
	last := c.LastTerminationState.Terminated
	switch waiting, ended := c.State.Waiting, c.State.Terminated; {
	case ended != nil && ended.ExitCode != 0:
		return ending(ended), true, true
	case waiting != nil && (waiting.Reason == "ContainerCreating" || waiting.Reason == "PodInitializing"):
		return "is not started yet", false, false
	case waiting != nil && last != nil:
		return fmt.Sprintf("waits (%s): it %s", waiting.Reason, ending(last)), true, true
	case waiting != nil && waiting.Reason != "":
		return strings.TrimSuffix(fmt.Sprintf("does not start (%s): %s", waiting.Reason, waiting.Message), ": "), true, false
	case c.State.Running != nil && !c.Ready && last != nil && last.ExitCode != 0:
		return fmt.Sprintf("was restarted %d times and is not ready: it %s", c.RestartCount, ending(last)), false, true
	default:
		return "", false, false
	}
}

func ending(t *corev1.ContainerStateTerminated) string {
	return fmt.Sprintf("ended with exit code %d (%s)", t.ExitCode, cmp.Or(t.Reason, "Error"))
}

// lastLine returns the last line in the log of a container that has failed; empty without the right
// to read it.
func (k *Kube) lastLine(ctx context.Context, pod *corev1.Pod, c corev1.ContainerStatus) string {
	lines, limit := int64(1), int64(maxLineBytes)
	stream, err := k.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: c.Name, Previous: c.State.Terminated == nil, TailLines: &lines, LimitBytes: &limit,
	}).Stream(ctx)
	if err != nil {
		return ""
	}
	defer stream.Close()
	text, _ := io.ReadAll(io.LimitReader(stream, limit)) // what was read may say enough
	return strings.TrimSpace(string(text))
}

// SecretCertificates reads the certificates of Trivet's Secrets in a namespace. An authority that
// is no longer used may have expired, so only the certificates of servers count. Without the
// published authorities, which cert-manager may keep elsewhere, they are not compared.
func (k *Kube) SecretCertificates(ctx context.Context, namespace string) ([]diagnosis.Certificate, error) {
	secrets, err := k.Client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	published, _ := portforward.New(nil, k.Client, namespace).Authorities(ctx)
	var found []diagnosis.Certificate
	for _, secret := range secrets.Items {
		if !hasCertificate(&secret) {
			continue
		}
		var chain []*x509.Certificate
		certificate := parse("Secret "+secret.Name, secret.Data[corev1.TLSCertKey], func(read []*x509.Certificate) *x509.Certificate {
			chain = read
			return read[0]
		})
		if isServers(secret.Name) && isForeign(chain, published) {
			certificate.Problem = "its certificate is not of an authority in ConfigMap trivet-ca, so that other servers refuse it"
		}
		found = append(found, certificate)
	}
	return found, nil
}

// hasCertificate reports whether a Secret has a certificate of a server, also for etcd. Those for
// etcd may be made by hand, with any type. The authority of `trivet certs` is in an opaque Secret.
func hasCertificate(secret *corev1.Secret) bool {
	const authority = "trivet-ca"
	_, has := secret.Data[corev1.TLSCertKey]
	return strings.HasPrefix(secret.Name, "trivet-") && has && (secret.Type == corev1.SecretTypeTLS || secret.Name != authority)
}

func isServers(secret string) bool {
	return slices.ContainsFunc(certs.Servers(), func(server string) bool { return secret == "trivet-"+server+"-tls" })
}

// isForeign reports whether a certificate is of none of the authorities. Its times do not matter.
func isForeign(chain []*x509.Certificate, authorities *x509.CertPool) bool {
	if len(chain) == 0 || authorities == nil {
		return false
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: intermediates, CurrentTime: chain[0].NotBefore.Add(time.Second),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	return unknown
}
