package deploy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// serverPods are the static Pods of the servers, agentPods those of the agent.
func serverPods() []string {
	return []string{
		"static-pods/bootstrapsvc", "static-pods/leasesvc", "static-pods/slicesvc", mirroringPod, "static-pods/gateway",
	}
}

func agentPods() []string { return []string{"static-pods/agent", "static-pods/agent-endpoint"} }

// mirroringPod is the static Pod of slicesvc with the loop that mirrors Endpoints.
const mirroringPod = "static-pods/slicesvc-mirroring"

// sharedPod is that of kube-apiserver with bootstrapsvc as a second container.
const sharedPod = "static-pods/kube-apiserver"

// hostAccess is the admission policy of component host-access.
const hostAccess = "trivet-host-access"

// nodeCritical is the number of the class system-node-critical.
const nodeCritical = 2000001000

// staticPod renders the one Pod of a manifest for the kubelet.
func staticPod(t *testing.T, tree string) *corev1.Pod {
	t.Helper()
	objects := render(t, tree)
	if len(objects) != 1 || objects[0].GetKind() != "Pod" {
		t.Fatalf("%s renders to %d objects, want one Pod: the kubelet reads one from a file", tree, len(objects))
	}
	return ofKind[corev1.Pod](t, objects, "Pod")[0]
}

// Static pods may not refer to objects of the API; the kubelet would refuse the manifest, and no
// apiserver says so.
func TestStaticPods_ReferToNoObject(t *testing.T) {
	for _, tree := range slices.Concat(serverPods(), agentPods(), []string{sharedPod}) {
		for _, pod := range render(t, tree) {
			text, err := pod.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			for _, reference := range []string{"configMap", "secret", "serviceAccount", "persistentVolumeClaim", "resourceClaim", "projected"} {
				if strings.Contains(string(text), `"`+reference) {
					t.Errorf("%s: %s refers to a %s", tree, pod.GetName(), reference)
				}
			}
		}
	}
}

// The kubelet stops Pods in the order of their number, which no admission gives to a static Pod.
// bootstrapsvc must not end later than the kube-apiserver beside it, nor earlier.
func TestStaticPods_StopWithTheControlPlane(t *testing.T) {
	for _, tree := range slices.Concat(serverPods(), agentPods(), []string{sharedPod}) {
		pod := staticPod(t, tree)
		if !pod.Spec.HostNetwork || pod.Spec.PriorityClassName != "system-node-critical" || pod.Spec.Priority == nil || *pod.Spec.Priority != nodeCritical {
			t.Errorf("%s: host network %v, class %q, priority %v", tree, pod.Spec.HostNetwork, pod.Spec.PriorityClassName, pod.Spec.Priority)
		}
		if policy := pod.Spec.RestartPolicy; policy != "" && policy != corev1.RestartPolicyAlways {
			t.Errorf("%s: restartPolicy %s, so it does not come back", tree, policy)
		}
	}
}

// A server as a static Pod takes the network of its machine and its folders, and nothing more: it
// meets the restricted standard without these.
func TestStaticPods_ServersNeedTheMachinesNetworkAndTheirFoldersAlone(t *testing.T) {
	makeSystem(t)
	for _, tree := range serverPods() {
		t.Run(filepath.Base(tree), func(t *testing.T) {
			pod := staticPod(t, tree)
			want := map[string]string{
				"/etc/trivet/tls": "/etc/trivet/" + pod.Name, "/etc/trivet/trust": "/etc/trivet/trust", "/etc/trivet/etcd": "/etc/trivet/etcd/" + pod.Name,
			}
			if got := folders(t, pod.Spec, pod.Spec.Containers[0], nil); !reflect.DeepEqual(got, want) {
				t.Errorf("mounts %v, want %v", got, want)
			}
			if err := admit(t, "static", withoutMachine(pod.Spec)); err != nil {
				t.Errorf("without network and folders the Pod is still refused: %v", err)
			}
		})
	}
}

// The agent's user is root, because the kubelet's certificate is root's alone. It has no capability
// and writes in one folder. Without network and folders it meets the baseline standard, and with
// another user the restricted one.
func TestStaticPods_AgentIsRootWithoutCapabilities(t *testing.T) {
	makeSystem(t)
	for _, tree := range agentPods() {
		t.Run(filepath.Base(tree), func(t *testing.T) {
			pod := staticPod(t, tree)
			want := map[string]string{}
			for _, path := range []string{"/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/pki", "/etc/trivet/trust", "/var/lib/trivet-agent"} {
				want[path] = path
			}
			if got := folders(t, pod.Spec, pod.Spec.Containers[0], []string{"/var/lib/trivet-agent"}); !reflect.DeepEqual(got, want) {
				t.Errorf("mounts %v, want %v", got, want)
			}
			spec := withoutMachine(pod.Spec)
			if err := admit(t, "static", spec); err == nil {
				t.Error("the restricted standard allows root, so this test proves nothing")
			}
			nonRoot, user := true, int64(65532)
			spec.SecurityContext.RunAsNonRoot, spec.SecurityContext.RunAsUser = &nonRoot, &user
			if err := admit(t, "static", spec); err != nil {
				t.Errorf("with another user the Pod is still refused: %v", err)
			}
		})
	}
}

// folders returns the folder or file of the machine behind each mount of a container. All but
// writable are read-only. A missing folder is created, so that it keeps no container from starting.
func folders(t *testing.T, spec corev1.PodSpec, container corev1.Container, writable []string) map[string]string {
	t.Helper()
	paths, found := map[string]string{}, map[string]string{}
	for _, volume := range spec.Volumes {
		if volume.HostPath == nil || volume.HostPath.Type == nil {
			t.Errorf("volume %s is not a folder of the machine with a type", volume.Name)
			continue
		}
		kind := corev1.HostPathDirectoryOrCreate
		if strings.HasSuffix(volume.HostPath.Path, ".conf") {
			kind = corev1.HostPathFile // an empty one is of no use
		}
		if *volume.HostPath.Type != kind {
			t.Errorf("%s has type %s, want %s", volume.HostPath.Path, *volume.HostPath.Type, kind)
		}
		paths[volume.Name] = volume.HostPath.Path
	}
	for _, mount := range container.VolumeMounts {
		if mount.ReadOnly == slices.Contains(writable, mount.MountPath) {
			t.Errorf("%s is mounted read-only: %v", mount.MountPath, mount.ReadOnly)
		}
		found[mount.MountPath] = paths[mount.Name]
	}
	if context := container.SecurityContext; !*context.ReadOnlyRootFilesystem || *context.AllowPrivilegeEscalation ||
		!slices.Equal(context.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(context.Capabilities.Add) > 0 {
		t.Errorf("%s has security context %+v", container.Name, context)
	}
	return found
}

// withoutMachine returns a Pod without the network and the files of its machine.
func withoutMachine(spec corev1.PodSpec) corev1.PodSpec {
	own := *spec.DeepCopy()
	own.HostNetwork, own.Volumes = false, nil
	for i := range own.Containers {
		container := &own.Containers[i]
		container.VolumeMounts = nil
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
			if probe != nil && probe.HTTPGet != nil {
				probe.HTTPGet.Host = "" // by host the probe finds the machine's loopback
			}
		}
	}
	return own
}

// A bad image of ours must not keep a kube-apiserver from starting or from being ready.
func TestSharedPod_KubeAPIServerWaitsForNothingOfOurs(t *testing.T) {
	pod := staticPod(t, sharedPod)
	if len(pod.Spec.InitContainers) > 0 {
		t.Fatalf("init containers %v: kube-apiserver waits for them", pod.Spec.InitContainers)
	}
	if len(pod.Spec.Containers) != 2 || pod.Spec.Containers[1].Name != "bootstrapsvc" {
		t.Fatalf("%d containers, want kube-apiserver and then bootstrapsvc: the kubelet pulls and starts them in this order", len(pod.Spec.Containers))
	}
	server, ours := pod.Spec.Containers[0], pod.Spec.Containers[1]
	if ours.ReadinessProbe != nil || ours.StartupProbe != nil || ours.Lifecycle != nil {
		t.Error("bootstrapsvc has a probe or hook that makes the Pod not ready, or that delays it")
	}
	want := map[string]string{
		"/etc/trivet/tls": "/etc/trivet/bootstrapsvc", "/etc/trivet/trust": "/etc/trivet/trust", "/etc/trivet/etcd": "/etc/trivet/etcd/bootstrapsvc",
	}
	if got := folders(t, pod.Spec, ours, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("bootstrapsvc mounts %v, want %v", got, want)
	}
	for _, mount := range server.VolumeMounts {
		if strings.HasPrefix(mount.MountPath, "/etc/trivet") {
			t.Errorf("kube-apiserver mounts %s", mount.MountPath)
		}
	}
	if delay := "--shutdown-delay-duration=10s"; !slices.Contains(server.Command, delay) {
		t.Errorf("kube-apiserver lacks %s, so it refuses before its address has left", delay)
	}
	if watches := "--shutdown-watch-termination-grace-period=2s"; !slices.Contains(server.Command, watches) {
		t.Errorf("kube-apiserver lacks %s, so open watches hold up its stop by a minute", watches)
	}
}

// In a Pod of its own or as a second container, a restart of bootstrapsvc is no stop of
// kube-apiserver.
func TestStaticPods_BootstrapsvcKeepsAServerThatIsReady(t *testing.T) {
	for _, tree := range []string{"static-pods/bootstrapsvc", sharedPod} {
		for _, server := range servers(staticPod(t, tree).Spec) {
			if settings := server.settings(t, nil); settings["keep-ready-address"] != "true" {
				t.Errorf("%s: settings %v lack keep-ready-address", tree, settings)
			}
		}
	}
}

// The kubelet of a machine shows each static Pod by a mirror Pod in the namespace, which component
// host-access allows. All other Pods are kept from the machine.
func TestHostAccess_MirrorPodsAndAgentsAlone(t *testing.T) {
	const node = "mirror-node"
	cluster, ctx := testkit.Cluster(t), t.Context()
	server := newApplier(t, cluster.RESTConfig())
	objects := render(t, withAgent)
	server.applyNamespaces(t, objects)
	t.Cleanup(func() { server.restore(t) })
	for _, object := range objects {
		if !strings.HasPrefix(object.GetKind(), "ValidatingAdmissionPolicy") {
			continue
		}
		if err := server.apply(ctx, object, false); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		policies := testkit.Kube(t).AdmissionregistrationV1()
		if err := errors.Join(
			policies.ValidatingAdmissionPolicyBindings().Delete(context.Background(), hostAccess, metav1.DeleteOptions{}),
			policies.ValidatingAdmissionPolicies().Delete(context.Background(), hostAccess, metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
	})
	nodes := kubelet(t, node)
	machine, err := testkit.Kube(t).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = testkit.Kube(t).CoreV1().Nodes().Delete(context.Background(), node, metav1.DeleteOptions{})
	})
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node, UID: machine.UID, Controller: new(true)}
	spec := staticPod(t, "static-pods/gateway").Spec
	testkit.Eventually(t, settled, func() error { return wantRefused(admit(t, "host", spec), "network of the machine") })

	for _, tree := range slices.Concat(serverPods(), agentPods()) {
		mirror := staticPod(t, tree)
		mirror.Annotations, mirror.OwnerReferences = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}, []metav1.OwnerReference{owner}
		mirror.Name, mirror.Spec.NodeName = mirror.Name+"-"+node, node
		if _, err := nodes.CoreV1().Pods(system).Create(ctx, mirror, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("mirror Pod of %s: %v", tree, err)
		}
	}
	agent := pods(t, objects)["daemonset/trivet-agent"]
	if err := admit(t, "agent", agent); err != nil {
		t.Errorf("Pod of the DaemonSet: %v", err)
	}
	unconfined := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec)
		want   string
	}{
		"network, of another account": {func(s *corev1.PodSpec) { s.ServiceAccountName = "default" }, "network of the machine"},
		"files":                       {func(s *corev1.PodSpec) { s.Volumes[2] = hostVolume("state") }, "files of the machine"},
		"processes":                   {func(s *corev1.PodSpec) { s.HostPID = true }, "processes of the machine"},
		"root":                        {func(s *corev1.PodSpec) { s.SecurityContext.RunAsNonRoot = nil }, "not root"},
		"capabilities":                {func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.Capabilities = nil }, "drop all capabilities"},
		"no seccomp profile":          {func(s *corev1.PodSpec) { s.SecurityContext.SeccompProfile = nil }, "seccomp"},
		"no AppArmor profile":         {func(s *corev1.PodSpec) { s.SecurityContext.AppArmorProfile = unconfined }, "AppArmor profile"},
		"no AppArmor, one container":  {func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.AppArmorProfile = unconfined }, "AppArmor profile"},
		"SELinux type of the machine": {func(s *corev1.PodSpec) { s.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }, "SELinux type"},
		"SELinux user": {func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{User: "system_u"}
		}, "SELinux type"},
		"all of /proc": {func(s *corev1.PodSpec) {
			s.HostNetwork, s.HostUsers, s.Containers[0].Ports = false, new(bool), nil
			s.Containers[0].SecurityContext.ProcMount = new(corev1.UnmaskedProcMount)
		}, "masked /proc"},
		"escalation": {func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil }, "must not escalate"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := agent.DeepCopy()
			c.change(changed)
			if err := wantRefused(admit(t, "agent", *changed), c.want); err != nil {
				t.Error(err)
			}
		})
	}
	for name, spec := range pods(t, render(t, everything)) {
		if err := admit(t, "admitted", spec); err != nil {
			t.Errorf("Pod of %s beside host-access: %v", name, err)
		}
	}
}

// wantRefused returns an error unless err is the refusal of an admission policy with a message.
func wantRefused(err error, message string) error {
	if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), hostAccess) || !strings.Contains(err.Error(), message) {
		return fmt.Errorf("%v, want a refusal of %s with %q", err, hostAccess, message)
	}
	return nil
}

func hostVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}
}
