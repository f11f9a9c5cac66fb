package certs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
	"github.com/trivet-dev/trivet/internal/identity"
)

// requestTimeout bounds each request to kube-apiserver.
const requestTimeout = 30 * time.Second

// objects are the Secrets and ConfigMaps of one namespace. Reads return nil for an absent object. A
// write creates an object without a resource version, and else replaces the version that it names.
type objects interface {
	secret(ctx context.Context, name string) (*corev1.Secret, error)
	configMap(ctx context.Context, name string) (*corev1.ConfigMap, error)
	writeSecret(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error)
	writeConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error
	// clusterClientCA returns the authorities by which kube-apiserver knows its clients.
	clusterClientCA(ctx context.Context) ([]byte, error)
}

// cluster has the objects of a Kubernetes cluster.
type cluster struct {
	kube      kubernetes.Interface
	namespace string
	dryRun    []string
}

func connect(opts *options, env func(string) string) (*cluster, error) {
	access, err := kubeaccess.Load(kubeaccess.Config{Kubeconfig: opts.kubeconfig, Context: opts.context, Env: env})
	if err != nil {
		return nil, err
	}
	access.REST.UserAgent = "trivet/" + identity.Version()
	access.REST.Timeout = requestTimeout
	client, err := kubeaccess.HTTPClient(access.REST)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("--kubeconfig: %w", err))
	}
	kube, err := kubernetes.NewForConfigAndClient(access.REST, client)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("--kubeconfig: %w", err))
	}
	c := &cluster{kube: kube, namespace: opts.namespace}
	if opts.dryRun {
		c.dryRun = []string{metav1.DryRunAll}
	}
	return c, nil
}

// present returns nil for an object that does not exist.
func present[T any](object *T, err error) (*T, error) {
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	default:
		return object, nil
	}
}

func (c *cluster) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	return present(c.kube.CoreV1().Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{}))
}

func (c *cluster) configMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	return present(c.kube.CoreV1().ConfigMaps(c.namespace).Get(ctx, name, metav1.GetOptions{}))
}

func (c *cluster) writeSecret(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	secrets := c.kube.CoreV1().Secrets(c.namespace)
	if secret.ResourceVersion == "" {
		return secrets.Create(ctx, secret, metav1.CreateOptions{DryRun: c.dryRun})
	}
	return secrets.Update(ctx, secret, metav1.UpdateOptions{DryRun: c.dryRun})
}

func (c *cluster) writeConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error {
	configMaps := c.kube.CoreV1().ConfigMaps(c.namespace)
	var err error
	if configMap.ResourceVersion == "" {
		_, err = configMaps.Create(ctx, configMap, metav1.CreateOptions{DryRun: c.dryRun})
	} else {
		_, err = configMaps.Update(ctx, configMap, metav1.UpdateOptions{DryRun: c.dryRun})
	}
	return err
}

// clusterClientCA reads the ConfigMap in which kube-apiserver publishes its --client-ca-file for
// extension API servers.
func (c *cluster) clusterClientCA(ctx context.Context) ([]byte, error) {
	const name, key = "extension-apiserver-authentication", "client-ca-file"
	published, err := c.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if published.Data[key] == "" {
		return nil, fmt.Errorf("ConfigMap %s/%s has no %s: kube-apiserver runs without --client-ca-file", metav1.NamespaceSystem, name, key)
	}
	return []byte(published.Data[key]), nil
}

// memory has objects that are read from and printed as YAML.
type memory struct {
	namespace  string
	secrets    map[string]*corev1.Secret
	configMaps map[string]*corev1.ConfigMap
	clientCA   []byte
}

func newMemory(namespace string) *memory {
	return &memory{namespace: namespace, secrets: map[string]*corev1.Secret{}, configMaps: map[string]*corev1.ConfigMap{}}
}

func (m *memory) secret(_ context.Context, name string) (*corev1.Secret, error) {
	return m.secrets[name].DeepCopy(), nil
}

func (m *memory) configMap(_ context.Context, name string) (*corev1.ConfigMap, error) {
	return m.configMaps[name].DeepCopy(), nil
}

func (m *memory) writeSecret(_ context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	m.secrets[secret.Name] = secret.DeepCopy()
	return secret, nil
}

func (m *memory) writeConfigMap(_ context.Context, configMap *corev1.ConfigMap) error {
	m.configMaps[configMap.Name] = configMap.DeepCopy()
	return nil
}

func (m *memory) clusterClientCA(context.Context) ([]byte, error) {
	if len(m.clientCA) == 0 {
		return nil, errors.New("no cluster is asked; give its authority with --client-ca-file")
	}
	return m.clientCA, nil
}

// load reads Secrets and ConfigMaps of a YAML text. Objects of another kind or namespace are an
// error, because they would be missing in the output.
func (m *memory) load(text []byte) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
			Type              corev1.SecretType `json:"type"`
			Data              map[string]string `json:"data"`
		}
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if object.Namespace != m.namespace {
			return fmt.Errorf("%s %q is in namespace %q, not %q", object.Kind, object.Name, object.Namespace, m.namespace)
		}
		switch object.Kind {
		case "ConfigMap":
			m.configMaps[object.Name] = &corev1.ConfigMap{TypeMeta: object.TypeMeta, ObjectMeta: object.ObjectMeta, Data: object.Data}
		case "Secret":
			secret := &corev1.Secret{TypeMeta: object.TypeMeta, ObjectMeta: object.ObjectMeta, Type: object.Type, Data: map[string][]byte{}}
			for key, value := range object.Data {
				content, err := base64.StdEncoding.DecodeString(value)
				if err != nil {
					return fmt.Errorf("key %[2]s of Secret %[1]q: %[3]w", object.Name, key, err)
				}
				secret.Data[key] = content
			}
			m.secrets[object.Name] = secret
		default:
			return fmt.Errorf("%s %q is neither a Secret nor a ConfigMap", object.Kind, object.Name)
		}
	}
}

// print writes all objects as YAML documents, ordered by kind and name.
func (m *memory) print(w io.Writer) error {
	type document struct {
		kind, name string
		object     any
	}
	var documents []document
	for name, configMap := range m.configMaps {
		configMap.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		documents = append(documents, document{kind: configMap.Kind, name: name, object: configMap})
	}
	for name, secret := range m.secrets {
		secret.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
		documents = append(documents, document{kind: secret.Kind, name: name, object: secret})
	}
	slices.SortFunc(documents, func(a, b document) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	for _, document := range documents {
		text, err := sigsyaml.Marshal(document.object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
