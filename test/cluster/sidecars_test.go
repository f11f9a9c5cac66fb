package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

const (
	bootstrapsvcPod = "bootstrapsvc"
	trivetNamespace = "trivet-system"
	// sidecarFailsSoon includes the time in which the kubelet answers nothing: it asks a
	// kube-apiserver that is being replaced about each caller.
	sidecarFailsSoon = 2 * time.Minute
)

// brokenImages are images of bootstrapsvc that do not work, by what is wrong with them.
var brokenImages = []struct {
	name, image string
	// failing returns nil when a container with the image has failed as meant.
	failing func(corev1.ContainerStatus) error
}{
	{"missing", "localhost/trivet:missing", func(s corev1.ContainerStatus) error {
		if s.State.Waiting == nil || !slices.Contains([]string{"ErrImagePull", "ImagePullBackOff"}, s.State.Waiting.Reason) {
			return fmt.Errorf("it does not wait for its image: %+v", s.State)
		}
		return nil
	}},
	{"crashing", "localhost/trivet:crashing", func(s corev1.ContainerStatus) error {
		if s.RestartCount == 0 {
			return fmt.Errorf("it has not crashed: %+v", s.State)
		}
		return nil
	}},
	{"hanging", "localhost/trivet:hanging", func(s corev1.ContainerStatus) error {
		if s.State.Running == nil && s.RestartCount == 0 {
			return fmt.Errorf("it does not hang: %+v", s.State)
		}
		return nil
	}},
}

// kube-apiserver starts and serves beside a bootstrapsvc whose image is missing, crashes or hangs:
// in a Pod of its own and, at the same time, as second container of kube-apiserver's Pod. Then the
// second container alone, with the right image, does what the Pod of its own does.
func TestServers_APIServerStartsBesideABrokenSidecar(t *testing.T) {
	f := sharedCluster(t)
	endpoints, other := watchEndpoints(t, f), f.node(t, otherNode)
	restore := keepPods(t, other, apiServerPod, bootstrapsvcPod)
	loadBrokenImages(t, other)
	began := time.Now()
	for _, broken := range brokenImages {
		setPod(t, other, withImage(t, other, broken.image))
		setPod(t, other, withSidecar(t, other, broken.image))
		took := awaitNewAPIServer(t, f, other)
		figure(t, "kube-apiserver replaced beside a bootstrapsvc with image "+broken.name, milliseconds(took), apiServerStart.String())
		mustEventually(t, sidecarFailsSoon, func(ctx context.Context) error {
			return errors.Join(
				f.containerIs(ctx, otherNode, apiServerPod, bootstrapsvcPod, broken.image, broken.failing),
				f.containerIs(ctx, otherNode, bootstrapsvcPod, "server", broken.image, broken.failing),
			)
		})
		if err := f.Ready(t.Context(), other); err != nil {
			t.Errorf("image %s: kube-apiserver: %v", broken.name, err)
		}
	}
	// Nothing has told the cluster that the server is ready.
	endpoints.awaitStaying(t, readyReturns)

	if err := other.RemovePod(bootstrapsvcPod); err != nil {
		t.Fatal(err)
	}
	setPod(t, other, withSidecar(t, other, trivetImage))
	took := awaitNewAPIServer(t, f, other)
	figure(t, "kube-apiserver replaced with a bootstrapsvc as second container", milliseconds(took), apiServerStart.String())
	back := time.Now()
	endpoints.awaitWith(t, other, time.Minute)
	figure(t, "address published by the second container", milliseconds(time.Since(back)), time.Minute.String())

	restore()
	took = awaitNewAPIServer(t, f, other)
	figure(t, "kube-apiserver replaced without a second container", milliseconds(took), apiServerStart.String())
	endpoints.awaitWith(t, other, time.Minute)
	endpoints.checkNeverEmpty(t, began)
	checkNoNodeDeclared(t, endpoints.history, began)
}

const trivetImage = "trivet:devel" // of all static Pods of a cluster that starts

// keepPods returns a function that puts manifests of static Pods back. The end of the test calls
// it, too.
func keepPods(t *testing.T, node *nodecluster.Node, pods ...string) func() {
	t.Helper()
	manifests := map[string][]byte{}
	for _, pod := range pods {
		manifest, err := node.Pod(pod)
		if err != nil {
			t.Fatal(err)
		}
		manifests[pod] = manifest
	}
	restore := sync.OnceFunc(func() {
		for pod, manifest := range manifests {
			if err := node.SetPod(pod, manifest); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(restore)
	return restore
}

func setPod(t *testing.T, node *nodecluster.Node, pod *corev1.Pod) {
	t.Helper()
	manifest, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.SetPod(pod.Name, manifest); err != nil {
		t.Fatal(err)
	}
}

// awaitNewAPIServer waits until another process than before is a ready kube-apiserver.
func awaitNewAPIServer(t *testing.T, f *fixture, node *nodecluster.Node) time.Duration {
	t.Helper()
	before, err := node.Processes(apiServerPod)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	mustEventually(t, apiServerStart, func(ctx context.Context) error {
		now, err := node.Processes(apiServerPod)
		if err != nil {
			return err
		}
		if len(now) != 1 || slices.Contains(before, now[0]) {
			return fmt.Errorf("kube-apiserver of %s has processes %v, and had %v", node.Name, now, before)
		}
		return f.Ready(ctx, node)
	})
	return time.Since(began)
}

// containerIs checks the status of a container of a static Pod. The kubelet is asked for it,
// because its mirror Pods are late by a minute: its watches retry less and less often while
// kube-apiserver restarts.
func (f *fixture) containerIs(ctx context.Context, node, pod, container, image string, check func(corev1.ContainerStatus) error) error {
	text, err := f.kube.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", node, "proxy/pods").DoRaw(ctx)
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := json.Unmarshal(text, &pods); err != nil {
		return err
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Name == pod+"-"+node })
	if i < 0 {
		return fmt.Errorf("the kubelet of %s has no Pod %s", node, pod)
	}
	found := pods.Items[i]
	for _, specified := range found.Spec.Containers {
		if specified.Name == container && specified.Image != image {
			return fmt.Errorf("container %s of Pod %s has image %s, want %s", container, pod, specified.Image, image)
		}
	}
	for _, status := range found.Status.ContainerStatuses {
		if status.Name != container {
			continue
		}
		if err := check(status); err != nil {
			return fmt.Errorf("container %s of Pod %s: %w", container, pod, err)
		}
		return nil
	}
	return fmt.Errorf("Pod %s has no status of a container %s", pod, container)
}

// withImage returns bootstrapsvc's static Pod of a node with another image, and with the pull
// policy of deploy/static-pods.
func withImage(t *testing.T, node *nodecluster.Node, image string) *corev1.Pod {
	t.Helper()
	pod := podOf(t, node, bootstrapsvcPod)
	main := &pod.Spec.Containers[0]
	main.Image, main.ImagePullPolicy = image, corev1.PullIfNotPresent
	return pod
}

func podOf(t *testing.T, node *nodecluster.Node, name string) *corev1.Pod {
	t.Helper()
	manifest, err := node.Pod(name)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(manifest, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// withSidecar returns kube-apiserver's static Pod of a node with what deploy/static-pods adds to
// it.
func withSidecar(t *testing.T, node *nodecluster.Node, image string) *corev1.Pod {
	t.Helper()
	pod := podOf(t, node, apiServerPod)
	// A former sidecar is replaced.
	pod.Spec.Containers = pod.Spec.Containers[:1]
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "trivet-") })
	// The requests in progress are those of this test alone.
	main := &pod.Spec.Containers[0]
	for i, arg := range main.Args {
		if strings.HasPrefix(arg, "--shutdown-delay-duration=") {
			main.Args[i] = "--shutdown-delay-duration=2s"
		}
	}
	text, err := fs.ReadFile(deploy.Files(), "static-pods/kube-apiserver/bootstrapsvc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var additions []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := yaml.UnmarshalStrict(text, &additions); err != nil {
		t.Fatal(err)
	}
	for _, addition := range additions {
		switch {
		case addition.Op == "add" && addition.Path == "/spec/containers/-":
			container := corev1.Container{}
			if err := json.Unmarshal(addition.Value, &container); err != nil {
				t.Fatal(err)
			}
			container.Image, container.ImagePullPolicy = image, corev1.PullIfNotPresent
			for i, arg := range container.Args {
				if strings.HasPrefix(arg, "--etcd-endpoints=") {
					container.Args[i] = "--etcd-endpoints=https://10.77.0.11:2379"
				}
			}
			pod.Spec.Containers = append(pod.Spec.Containers, container)
		case addition.Op == "add" && addition.Path == "/spec/volumes/-":
			volume := corev1.Volume{}
			if err := json.Unmarshal(addition.Value, &volume); err != nil {
				t.Fatal(err)
			}
			pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
		default:
			t.Fatalf("this test does not know how to %s %s", addition.Op, addition.Path)
		}
	}
	return pod
}

// loadBrokenImages gives a node the images that exist. Their /bootstrapsvc is another program.
func loadBrokenImages(t *testing.T, node *nodecluster.Node) {
	t.Helper()
	dir := t.TempDir()
	// The command line knows none of bootstrapsvc's flags, and pause waits for a signal.
	for name, program := range map[string]string{"crashing": "trivet", "hanging": "pause"} {
		as := filepath.Join(dir, name, bootstrapsvcPod)
		if err := errors.Join(os.Mkdir(filepath.Dir(as), 0o755), copyFile(filepath.Join(absolute(t, *arguments.binaries), program), as)); err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(dir, name+".tar")
		if err := nodecluster.WriteImage(archive, "localhost/trivet:"+name, as); err != nil {
			t.Fatal(err)
		}
		if err := node.LoadImage(t.Context(), archive); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}
