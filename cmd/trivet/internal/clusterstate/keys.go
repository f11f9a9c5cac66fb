package clusterstate

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/etcdroles"
)

const (
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	// certsAccount is the account of the Job certs, which reads and writes the Secrets with keys.
	certsAccount = "certs"
	// machineTrust is the public part of /etc/trivet.
	machineTrust = "/etc/trivet/trust"
	// trivetKeys is the prefix of the keys of all clusters.
	trivetKeys = "/trivet/"
)

// machineKeys are the folders of a machine with keys: those of static Pods, and kubeadm's.
func machineKeys() []string { return []string{"/etc/trivet", "/etc/kubernetes/pki", "/var/lib/etcd"} }

// KeyPlacement returns the Pods of a namespace with keys that have not ended, and the control-plane
// nodes.
func (k *Kube) KeyPlacement(ctx context.Context, namespace string) (diagnosis.Placement, error) {
	pods, err := k.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return diagnosis.Placement{}, err
	}
	nodes, err := k.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: controlPlaneLabel})
	if err != nil {
		return diagnosis.Placement{}, err
	}
	var found diagnosis.Placement
	for i := range nodes.Items {
		found.ControlPlane = append(found.ControlPlane, nodes.Items[i].Name)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed; ended {
			continue
		}
		keys, err := keysOf(&pod.Spec)
		if err != nil {
			return diagnosis.Placement{}, err
		}
		if len(keys) > 0 {
			found.Pods = append(found.Pods, diagnosis.KeyPod{
				Name: pod.Name, Keys: keys, Node: pod.Spec.NodeName, Waits: unschedulable(pod), Member: pod.Labels["app.kubernetes.io/name"] == "etcd",
			})
		}
	}
	return found, nil
}

// unschedulable returns why no node takes a Pod, in the scheduler's words.
func unschedulable(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
			return condition.Message
		}
	}
	return ""
}

// keysOf names what has keys in a Pod: its Secrets, its volumes of CSI drivers, keys of its
// machine, and its account.
func keysOf(spec *corev1.PodSpec) ([]string, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, field := range []string{"volumes", "containers", "initContainers", "ephemeralContainers"} {
		addKeys(found, field, fields[field])
	}
	if spec.ServiceAccountName == certsAccount {
		found["account "+certsAccount] = true
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// addKeys adds what a field and all fields below it have. A field that reads a Secret has "secret"
// in its name, and is the name of the Secret or has it in a field.
func addKeys(found map[string]bool, field string, value any) {
	secret := strings.Contains(strings.ToLower(field), "secret")
	switch value := value.(type) {
	case string:
		if secret {
			found[value] = true
		}
	case []any:
		for _, item := range value {
			addKeys(found, "", item)
		}
	case map[string]any:
		if name, named := value["name"].(string); secret && named {
			found[name] = true
		}
		if driver, inPod := value["driver"].(string); field == "csi" && inPod {
			found["a volume of "+driver] = true
		}
		if path, onMachine := value["path"].(string); field == "hostPath" && onMachine && hasMachineKeys(path) {
			found[path] = true
		}
		for below, item := range value {
			addKeys(found, below, item)
		}
	}
}

// hasMachineKeys says whether a file or folder of a machine has, or is in, a folder with keys.
func hasMachineKeys(path string) bool {
	path = filepath.Clean(path)
	within := func(path, folder string) bool {
		return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
	}
	return !within(path, machineTrust) && slices.ContainsFunc(machineKeys(), func(folder string) bool {
		return within(path, folder) || within(folder, path)
	})
}

// EtcdAccess asks etcd what its client may do that no server of Trivet needs. It reads numbers of
// keys, and no key.
func EtcdAccess(ctx context.Context, config etcdconn.Config) (diagnosis.EtcdAccess, error) {
	client, err := etcdconn.Connect(config, slog.New(slog.DiscardHandler))
	if err != nil {
		return diagnosis.EtcdAccess{}, err
	}
	defer closeClient(client)
	counted, err := client.Txn(ctx).Then(
		clientv3.OpGet("\x00", clientv3.WithFromKey(), clientv3.WithCountOnly()),
		clientv3.OpGet(trivetKeys, clientv3.WithPrefix(), clientv3.WithCountOnly()),
	).Commit()
	switch {
	case err == nil:
		count := func(i int) int64 { return counted.Responses[i].GetResponseRange().GetCount() }
		return diagnosis.EtcdAccess{All: true, Foreign: count(0) - count(1)}, nil
	case !errors.Is(err, rpctypes.ErrPermissionDenied):
		return diagnosis.EtcdAccess{Failure: FailureOf(err)}, nil
	}
	held, err := heldGrants(ctx, client, config.CertFile)
	if err != nil {
		return diagnosis.EtcdAccess{Failure: FailureOf(err)}, nil
	}
	var access diagnosis.EtcdAccess
	for _, grant := range etcdroles.Beyond(held) {
		verb := map[bool]string{true: "write", false: "read"}[grant.Write]
		access.Beyond = append(access.Beyond, verb+" "+grant.Key)
	}
	return access, nil
}

// heldGrants returns the rights of all roles of a client. Each user may read its own.
func heldGrants(ctx context.Context, client *clientv3.Client, certFile string) ([]etcdroles.Grant, error) {
	text, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	chain, err := certs.ParseCertificates(text)
	if err != nil {
		return nil, err
	}
	user, err := client.UserGet(ctx, chain[0].Subject.CommonName)
	if err != nil {
		return nil, err
	}
	var held []etcdroles.Grant
	for _, name := range user.Roles {
		role, err := client.RoleGet(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, p := range role.Perm {
			held = append(held, etcdroles.Grant{Key: string(p.Key), End: string(p.RangeEnd), Write: p.PermType != authpb.READ})
		}
	}
	return held, nil
}
