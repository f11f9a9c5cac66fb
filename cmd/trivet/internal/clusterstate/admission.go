package clusterstate

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
)

// PodAdmissions asks kube-apiserver whether a namespace takes a Pod of each kind of deploy/, and
// writes none. Deployments and Jobs are accepted without that answer: their controllers get it.
func (k *Kube) PodAdmissions(ctx context.Context, manifests fs.FS, namespace string) (diagnosis.PodAdmissions, error) {
	found := diagnosis.PodAdmissions{Namespace: namespace}
	switch _, err := k.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		found.Absent = true
		return found, nil
	case err != nil:
		return found, err
	}
	right := k.OwnRights(ctx, []diagnosis.Right{{Verb: "create", Resource: "pods", Namespace: namespace}})[0]
	if !right.Allowed {
		return found, fmt.Errorf("you may not %s", right)
	}
	templates, err := podTemplates(manifests)
	if err != nil {
		return found, err
	}
	for _, kind := range []string{diagnosis.ServerPod, diagnosis.JobPod, diagnosis.AgentPod} {
		refusal, err := k.refusal(ctx, namespace, templates[kind])
		if err != nil {
			return found, err
		}
		found.Pods = append(found.Pods, diagnosis.PodAdmission{Kind: kind, Refusal: refusal})
	}
	return found, nil
}

// podTemplates returns a template of each kind of Pod.
func podTemplates(manifests fs.FS) (map[string]corev1.PodTemplateSpec, error) {
	var server appsv1.Deployment
	var job batchv1.Job
	var agent appsv1.DaemonSet
	common, err := readJSON(manifests, "base/server.yaml")
	if err != nil {
		return nil, err
	}
	for file, object := range map[string]any{
		"base/leasesvc/deployment.yaml": &server, "components/certs/jobs.yaml": &job, "components/agent/daemonset.yaml": &agent,
	} {
		text, err := readJSON(manifests, file)
		if err == nil && object == any(&server) {
			text, err = strategicpatch.StrategicMergePatch(text, common, server)
		}
		if err == nil {
			err = yaml.Unmarshal(text, object)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Base(file), err)
		}
	}
	return map[string]corev1.PodTemplateSpec{
		diagnosis.ServerPod: server.Spec.Template, diagnosis.JobPod: job.Spec.Template, diagnosis.AgentPod: agent.Spec.Template,
	}, nil
}

// readJSON reads the first document of a manifest.
func readJSON(manifests fs.FS, file string) ([]byte, error) {
	text, err := fs.ReadFile(manifests, file)
	if err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(text)
}

// refusal returns why kube-apiserver refuses a Pod; empty if it takes it.
func (k *Kube) refusal(ctx context.Context, namespace string, template corev1.PodTemplateSpec) (string, error) {
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.GenerateName = "trivet-check-"
	switch _, err := k.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		pod.Spec.ServiceAccountName = "default" // before an install
	case err != nil:
		return "", err
	}
	_, err := k.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return "", nil
	}
	text := err.Error()
	refused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		strings.Contains(text, diagnosis.QuotaMissing) // an internal error by its code
	// A webhook without dry runs, and a new quota, give no answer.
	if refused && !strings.Contains(text, "does not support dry run") && !strings.Contains(text, "status unknown for quota") {
		return text, nil
	}
	return "", err
}
