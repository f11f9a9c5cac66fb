package cluster

import (
	"archive/tar"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

var previousCommit = flag.String("cluster.previous", "HEAD~1", "commit whose images are upgraded to this one's")

const (
	previousImage = "localhost/trivet:previous"
	// upgradeStale limits the time for which a slice is not up to date while the only slicesvc is
	// replaced: the kubelet sees its manifest (2 s), stops it and starts it.
	upgradeStale = 20 * time.Second
	// killedStale is the same after a kill, after which a term ends with its session (5 s) and a
	// container that died before waits (20 s).
	killedStale  = 60 * time.Second
	replaceLimit = 2 * time.Minute
)

// server is a static Pod of Trivet on a node.
type server struct{ node, pod string }

// upgradedServers are all of them, in the order of an upgrade.
func upgradedServers() []server {
	return []server{
		{"cp2", "bootstrapsvc"}, {"cp1", "bootstrapsvc"}, {"cp1", "leasesvc"}, {"cp1", "slicesvc"}, {"cp1", "gateway"},
		{"cp1", agentPod}, {"cp2", agentPod}, {"w1", agentPod}, {"w2", agentPod},
	}
}

const agentPod = "trivet-agent"

// The images of the previous commit are replaced by those of this one, one after the other, while
// readiness of Pods flips and Pods are deleted. Slices follow, and no node is declared.
func TestUpgrade_FromThePreviousCommitUnderLoad(t *testing.T) {
	f := sharedCluster(t)
	archive := previousArchive(t)
	for _, node := range f.Nodes() {
		if err := node.LoadImage(t.Context(), archive); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range upgradedServers() {
		keepPods(t, f.node(t, s.node), s.pod)
		s.setImage(t, f, previousImage)
	}
	for _, s := range upgradedServers() {
		s.awaitImage(t, f, previousImage)
	}
	namespace := f.namespace(t, "upgrade")
	h := watchAll(t, f.kube, namespace)
	f.deploy(t, namespace)
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })

	began := time.Now()
	endFlips := f.startFlips(t, h)
	for _, s := range upgradedServers() {
		replaced := time.Now()
		s.setImage(t, f, trivetImage)
		s.awaitImage(t, f, trivetImage)
		t.Logf("%s of %s replaced after %s", s.pod, s.node, milliseconds(time.Since(replaced)))
	}
	flips, deletions := endFlips()
	f.makeReady(t, h)
	h.await(t, time.Minute, func() error { return atRest(h, webReplicas) })
	figure(t, "images upgraded under load", fmt.Sprintf("%d servers in %s, %d readiness flips, %d Pods deleted", len(upgradedServers()), milliseconds(time.Since(began)), flips, deletions), "0 wrong slices, 0 nodes declared")
	checkSlices(t, h, began, "images upgraded", upgradeStale)
	checkNoNodeDeclared(t, h, began)
}

// slicesvc and leasesvc die at the moment at which Pods become unready.
func TestUpgrade_ServersKilledDuringAReadinessFlip(t *testing.T) {
	f := sharedCluster(t)
	namespace := f.namespace(t, "killed")
	h := watchAll(t, f.kube, namespace)
	f.deploy(t, namespace)
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })
	began := time.Now()
	flipped := objects[*corev1.Pod](h)[:2]
	for _, pod := range flipped {
		if err := f.setReady(t.Context(), pod, false); err != nil {
			t.Fatal(err)
		}
	}
	first := f.node(t, stayingNode)
	if err := errors.Join(first.Signal("slicesvc", syscall.SIGKILL), first.Signal("leasesvc", syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	h.await(t, killedStale, func() error { return atRest(h, webReplicas-len(flipped)) })
	figure(t, "slicesvc and leasesvc killed during a readiness flip, slices right", milliseconds(time.Since(began)), killedStale.String())
	f.makeReady(t, h)
	h.await(t, time.Minute, func() error { return atRest(h, webReplicas) })
	// The kubelet may take a while to say that the containers run again. leasesvc leads when it
	// accepts a beat.
	f.awaitBeats(t, time.Now())
	figure(t, "slicesvc and leasesvc killed, beats of all nodes again", milliseconds(time.Since(began)), "≤ 1m")
	checkSlices(t, h, began, "servers killed", killedStale)
	checkNoNodeDeclared(t, h, began)
}

// checkSlices is the oracle over the versions of Pods and slices since then.
func checkSlices(t *testing.T, h *history, then time.Time, what string, bound time.Duration) {
	t.Helper()
	lags := sliceLags(h.since(time.Time{}), then, time.Now())
	figure(t, "Pod unready or deleted, ready in slices ("+what+")", lags.stale.String(), "each ≤ "+bound.String())
	figure(t, "Pod ready, not in slices ("+what+")", lags.missing.String(), "each ≤ "+bound.String())
	for _, l := range []lagList{lags.stale, lags.missing} {
		if len(l) == 0 {
			t.Errorf("%s: no lag was seen, so no Pod was", what)
		} else if worst := slices.Max(l); worst > bound {
			t.Errorf("%s: slices follow Pods after %v, want %v at most", what, worst, bound)
		}
	}
}

func (s server) setImage(t *testing.T, f *fixture, image string) {
	t.Helper()
	if err := f.node(t, s.node).SetServerImage(s.pod, image); err != nil {
		t.Fatal(err)
	}
}

// awaitImage waits until the kubelet says that the Pod has the image and is ready.
func (s server) awaitImage(t *testing.T, f *fixture, image string) {
	t.Helper()
	name := s.pod + "-" + s.node
	mustEventually(t, replaceLimit, func(ctx context.Context) error {
		pod, err := f.kube.CoreV1().Pods(trivetNamespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := pod.Spec.Containers[0].Image; got != image || !podIsReady(pod) {
			return fmt.Errorf("Pod %s has image %s, want %s, and is ready: %v", name, got, image, podIsReady(pod))
		}
		return nil
	})
}

// setReady tells the program of a Pod whether it is ready.
func (f *fixture) setReady(ctx context.Context, pod *corev1.Pod, ready bool) error {
	path := "/unready"
	if ready {
		path = "/ready"
	}
	_, err := f.get(ctx, stayingNode, http.MethodPost, "http://"+pod.Status.PodIP+":8080"+path)
	return err
}

// makeReady tells all Pods that run.
func (f *fixture) makeReady(t *testing.T, h *history) {
	t.Helper()
	for _, pod := range running(h) {
		mustEventually(t, 30*time.Second, func(ctx context.Context) error { return f.setReady(ctx, pod, true) })
	}
}

func running(h *history) []*corev1.Pod {
	return slices.DeleteFunc(objects[*corev1.Pod](h), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == ""
	})
}

// startFlips changes the readiness of a Pod each second and deletes one every six seconds, until
// the returned function is called or the test ends.
func (f *fixture) startFlips(t *testing.T, h *history) (end func() (flipped, deleted int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var flipped, deleted int // read after done
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for turn := 1; ; turn++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			pods := running(h)
			if len(pods) == 0 {
				continue
			}
			pod := pods[rand.IntN(len(pods))]
			if turn%6 == 0 {
				if f.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}) == nil {
					deleted++
				}
				continue
			}
			// A Pod that is going refuses.
			if f.setReady(ctx, pod, !podIsReady(pod)) == nil {
				flipped++
			}
		}
	}()
	return func() (int, int) { stop(); return flipped, deleted }
}

// previousArchive builds the commands of the previous commit and returns an image of them.
func previousArchive(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, binaries, archive := filepath.Join(dir, "source"), filepath.Join(dir, "binaries"), filepath.Join(dir, "previous.tar")
	checkOut(t, *previousCommit, source)
	// The same flags as those of `make image`, so that packages that have not changed are not
	// compiled.
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binaries+"/", "./cmd/...")
	build.Dir = source
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", *previousCommit, err, output)
	}
	if err := gobuild.LinkServers(binaries); err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob(filepath.Join(binaries, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodecluster.WriteImage(archive, previousImage, programs...); err != nil {
		t.Fatal(err)
	}
	return archive
}

// checkOut writes the files of a commit into a directory. The repository stays as it is.
func checkOut(t *testing.T, commit, dir string) {
	t.Helper()
	git := exec.CommandContext(t.Context(), "git", "archive", "--format=tar", commit)
	git.Dir = absolute(t, "../..") // git archive has the files below its directory
	var stderr strings.Builder
	git.Stderr = &stderr
	stdout, err := git.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := git.Start(); err != nil {
		t.Fatal(err)
	}
	extractErr := extract(stdout, dir)
	if err := errors.Join(git.Wait(), extractErr); err != nil {
		t.Fatalf("files of %s: %v\n%s", commit, err, stderr.String())
	}
}

func extract(from io.Reader, dir string) error {
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, from)
			return err
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		file := filepath.Join(dir, header.Name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return err
		}
	}
}
