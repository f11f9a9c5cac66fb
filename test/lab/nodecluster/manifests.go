package nodecluster

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/deploy"
)

const (
	imageTag    = ":1"
	trivetImage = "trivet:devel" // the name in deploy/static-pods
	pauseImage  = "localhost/pause" + imageTag
)

// staticPods returns the manifests of a node, by file name.
func staticPods(c Config, i int) (map[string][]byte, error) {
	pods, node := []*corev1.Pod{}, c.Nodes[i]
	if node.ControlPlane {
		pods = append(pods, kubeAPIServer(c, i))
	}
	if i == 0 {
		pods = append(pods, etcdPod(), controllerManager(c), scheduler())
	}
	for _, server := range trivetPods(c, i) {
		pod, err := trivetPod(server)
		if err != nil {
			return nil, err
		}
		adaptTrivet(pod, server)
		pods = append(pods, pod)
	}
	files := map[string][]byte{}
	for _, pod := range pods {
		main := &pod.Spec.Containers[0]
		main.Args = append(main.Args, c.ServerArgs[pod.Name]...)
		text, err := yaml.Marshal(pod)
		if err != nil {
			return nil, fmt.Errorf("encode manifest of %s: %w", pod.Name, err)
		}
		files[pod.Name+".yaml"] = text
	}
	return files, nil
}

// trivetPods names the folders of deploy/static-pods that a node runs.
func trivetPods(c Config, i int) []string {
	var servers []string
	if c.WithoutTrivet {
		return nil
	}
	if c.Nodes[i].ControlPlane && !c.UpstreamEndpoints {
		servers = append(servers, "bootstrapsvc")
	}
	if i == 0 {
		servers = append(servers, "leasesvc", "slicesvc", "gateway")
	}
	switch c.Nodes[i].Agent {
	case ProbeAgent:
		servers = append(servers, "agent")
	case EndpointAgent:
		servers = append(servers, "agent-endpoint")
	}
	return servers
}

// trivetPod reads a Pod of deploy/static-pods and applies the patch that all servers share.
func trivetPod(folder string) (*corev1.Pod, error) {
	files := []string{folder + "/pod.yaml", "common/server.yaml"}
	if strings.HasPrefix(folder, "agent") {
		files = []string{"agent/pod.yaml"}
	}
	var merged []byte
	for _, file := range files {
		text, err := fs.ReadFile(deploy.Files(), "static-pods/"+file)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		object, err := yaml.YAMLToJSON(text)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", file, err)
		}
		if merged == nil {
			merged = object
			continue
		}
		// The patch has the name "any", as kustomize ignores it.
		object = []byte(strings.Replace(string(object), `"metadata":{"name":"any"},`, "", 1))
		if merged, err = strategicpatch.StrategicMergePatch(merged, object, corev1.Pod{}); err != nil {
			return nil, fmt.Errorf("merge %s: %w", file, err)
		}
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(merged, pod); err != nil {
		return nil, fmt.Errorf("parse Pod %s: %w", folder, err)
	}
	return pod, nil
}

// adaptTrivet makes the changes that an administrator makes to the shipped manifests: the image,
// etcd and the loops.
func adaptTrivet(pod *corev1.Pod, folder string) {
	main := &pod.Spec.Containers[0]
	main.Image, main.ImagePullPolicy = trivetImage, corev1.PullNever
	switch folder {
	case "agent":
	case "agent-endpoint":
		main.Args = append(main.Args, "--kubelet-endpoint="+kubeletEndpoint, "--discover-apiservers")
	default:
		setEnv(main, "TRIVET_ETCD_ENDPOINTS", fmt.Sprintf("https://%s:2379", nodeAddress(0)))
	}
	switch folder {
	case "slicesvc":
		setEnv(main, "TRIVET_LOOPS", "*,endpointslice-mirroring")
	case "leasesvc":
		setEnv(main, "TRIVET_LOOPS", "*,node-health,taint-eviction")
		// The node-lifecycle controller is off, so nothing compares when renewTime last changed.
		setEnv(main, "TRIVET_WRITE_POLICY", "on-change")
	}
}

func setEnv(container *corev1.Container, name, value string) {
	container.Env = slices.DeleteFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
}

func etcdPod() *corev1.Pod {
	const pki = "/etc/kubernetes/pki/etcd/"
	address := nodeAddress(0)
	pod := controlPlanePod("etcd", 2381, corev1.URISchemeHTTP, "/health?serializable=true",
		"--name=etcd", "--data-dir=/var/lib/etcd",
		fmt.Sprintf("--listen-client-urls=https://127.0.0.1:2379,https://%s:2379", address),
		fmt.Sprintf("--advertise-client-urls=https://%s:2379", address),
		fmt.Sprintf("--listen-peer-urls=https://%s:2380", address),
		fmt.Sprintf("--initial-advertise-peer-urls=https://%s:2380", address),
		fmt.Sprintf("--initial-cluster=etcd=https://%s:2380", address),
		"--cert-file="+pki+"server.crt", "--key-file="+pki+"server.key", "--trusted-ca-file="+pki+"ca.crt", "--client-cert-auth",
		"--peer-cert-file="+pki+"server.crt", "--peer-key-file="+pki+"server.key", "--peer-trusted-ca-file="+pki+"ca.crt", "--peer-client-cert-auth",
		"--listen-metrics-urls=http://127.0.0.1:2381", "--log-level=warn",
		// The power cuts of this cluster end processes and lose no page of the machine's memory.
		"--unsafe-no-fsync",
	)
	addHostPath(pod, "data", "/var/lib/etcd", false)
	return pod
}

func kubeAPIServer(c Config, i int) *corev1.Pod {
	const pki = "/etc/kubernetes/pki/"
	reconciler := "none" // bootstrapsvc publishes the addresses
	if c.UpstreamEndpoints {
		reconciler = "lease"
	}
	pod := controlPlanePod("kube-apiserver", apiServerPort, corev1.URISchemeHTTPS, "/livez",
		fmt.Sprintf("--advertise-address=%s", nodeAddress(i)),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--client-ca-file="+pki+"ca.crt",
		"--endpoint-reconciler-type="+reconciler,
		"--etcd-cafile="+pki+"etcd/ca.crt", "--etcd-certfile="+pki+"apiserver-etcd-client.crt", "--etcd-keyfile="+pki+"apiserver-etcd-client.key",
		fmt.Sprintf("--etcd-servers=https://%s:2379", nodeAddress(0)),
		"--kubelet-client-certificate="+pki+"apiserver-kubelet-client.crt", "--kubelet-client-key="+pki+"apiserver-kubelet-client.key",
		"--kubelet-preferred-address-types=InternalIP",
		fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--service-account-issuer=https://kubernetes.default.svc."+clusterDomain,
		"--service-account-key-file="+pki+verifyingKey, "--service-account-signing-key-file="+pki+signingKeyFile,
		"--service-cluster-ip-range="+serviceCIDR,
		"--shutdown-delay-duration=10s", "--shutdown-watch-termination-grace-period=2s",
		"--tls-cert-file="+pki+"apiserver.crt", "--tls-private-key-file="+pki+"apiserver.key",
	)
	grace := int64(75)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	return pod
}

func controllerManager(c Config) *corev1.Pod {
	const kubeconfig = "/etc/kubernetes/controller-manager.conf"
	pod := controlPlanePod("kube-controller-manager", 10257, corev1.URISchemeHTTPS, "/healthz",
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", "--cert-dir=/tmp", "--controllers="+c.Controllers, "--use-service-account-credentials",
		"--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt", "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
		"--cluster-signing-duration="+c.CertificateLifetime.String(),
		"--root-ca-file=/etc/kubernetes/pki/ca.crt", "--service-account-private-key-file=/etc/kubernetes/pki/"+signingKeyFile,
	)
	addHostPath(pod, "kubeconfig", kubeconfig, true)
	return pod
}

func scheduler() *corev1.Pod {
	const kubeconfig = "/etc/kubernetes/scheduler.conf"
	pod := controlPlanePod("kube-scheduler", 10259, corev1.URISchemeHTTPS, "/healthz",
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", "--cert-dir=/tmp",
	)
	addHostPath(pod, "kubeconfig", kubeconfig, true)
	return pod
}

// controlPlanePod follows kubeadm's static Pods.
func controlPlanePod(name string, port int, scheme corev1.URIScheme, path string, args ...string) *corev1.Pod {
	probe := func(period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Host: "127.0.0.1", Path: path, Port: intstr.FromInt(port), Scheme: scheme,
			}},
			PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 15,
		}
	}
	priority := int32(2000001000)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem, Labels: map[string]string{"component": name, "tier": "control-plane"}},
		Spec: corev1.PodSpec{
			HostNetwork: true, Priority: &priority, PriorityClassName: "system-node-critical",
			Containers: []corev1.Container{{
				Name: name, Image: "localhost/" + name + imageTag, ImagePullPolicy: corev1.PullNever, Args: args,
				StartupProbe: probe(1, 240), LivenessProbe: probe(10, 8),
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")}},
			}},
		},
	}
	addHostPath(pod, "pki", "/etc/kubernetes/pki", true)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	main := &pod.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "tmp", MountPath: "/tmp"})
	return pod
}

func addHostPath(pod *corev1.Pod, name, path string, readOnly bool) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
	})
	main := &pod.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: readOnly})
}
