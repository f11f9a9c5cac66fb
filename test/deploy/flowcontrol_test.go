package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	// seats is the concurrency of the kube-apiserver, so small that a test can use it up.
	seats = 30
	// noAnswer is how long a request waits before its level counts as used up. Below that a level
	// that is not used up answers, also on a busy machine; a longer delay only ends the flood
	// early.
	noAnswer = 3 * time.Second
	// largeBody is more than the connection takes while its client does not read.
	largeBody = 900 << 10
)

// With component flow-control, other accounts that use up their level do not starve the servers,
// and servers that use up theirs do not starve other accounts. A request keeps its seat while its
// client does not read the answer.
func TestFlowControl_NeitherStarvesNorIsStarved(t *testing.T) {
	cluster, err := devcluster.Start(t.Context(), devcluster.Config{APIServerArgs: []string{
		fmt.Sprintf("--max-requests-inflight=%d", seats/2), fmt.Sprintf("--max-mutating-requests-inflight=%d", seats/2),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	makeLargeList(t, cluster)
	ours, other := newAsker(t, cluster, username("slicesvc")), newAsker(t, cluster, "system:serviceaccount:other:other")
	// Without the component one level serves both accounts, so the flood of one starves the other.
	eventually(t, func() error {
		stop := other.flood(t)
		defer stop()
		_, end, err := ours.begin(t.Context(), noAnswer)
		if err != nil {
			return nil
		}
		end()
		return errors.New("the two accounts have a level of their own already")
	})
	server := newApplier(t, cluster.RESTConfig())
	for _, object := range render(t, "overlays/standalone") {
		if strings.HasPrefix(object.GroupVersionKind().Group, "flowcontrol.") {
			if err := server.apply(t.Context(), object, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, func() error {
		own, err := ours.ask(t.Context())
		if err != nil {
			return err
		}
		foreign, err := other.ask(t.Context())
		if err == nil && own == foreign {
			err = errors.New("both accounts have the same FlowSchema")
		}
		return err
	})
	for flooding, calm := range map[*asker]*asker{other: ours, ours: other} {
		t.Run(flooding.user, func(t *testing.T) {
			stop := flooding.flood(t)
			defer stop()
			if _, err := calm.ask(t.Context()); err != nil {
				t.Errorf("%s is starved: %v", calm.user, err)
			}
		})
	}
}

// makeLargeList makes a list of two MiB, which every account may read.
func makeLargeList(t *testing.T, cluster *devcluster.Cluster) {
	t.Helper()
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		large := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": strings.Repeat("a", largeBody)}}
		if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"} // of this namespace
	all := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts"}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "all"}, RoleRef: role, Subjects: all}
	if _, err := kube.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// asker lists the ConfigMaps as one account, over HTTP/2 with a small buffer for unread answers.
type asker struct {
	user, url string
	client    *http.Client
}

func newAsker(t *testing.T, cluster *devcluster.Cluster, user string) *asker {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, user, "system:serviceaccounts"); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	verified, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig: verified, ForceAttemptHTTP2: true, DisableCompression: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &asker{user: user, url: config.Host + "/api/v1/namespaces/default/configmaps", client: &http.Client{Transport: transport}}
}

// begin asks and returns once the answer begins, with its FlowSchema. end frees the seat.
func (a *asker) begin(ctx context.Context, within time.Duration) (flow string, end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(within, cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		cancel()
		return "", nil, err
	}
	response, err := a.client.Do(request)
	if err != nil {
		cancel()
		return "", nil, err
	}
	late.Stop()
	end = func() { cancel(); response.Body.Close() }
	if response.StatusCode != http.StatusOK {
		end()
		return "", nil, fmt.Errorf("kube-apiserver answers %s", response.Status)
	}
	return response.Header.Get("X-Kubernetes-PF-FlowSchema-UID"), end, nil
}

// ask asks once, and waits for the answer as long as a busy machine may take.
func (a *asker) ask(ctx context.Context) (flow string, err error) {
	flow, end, err := a.begin(ctx, 30*time.Second)
	if err == nil {
		end()
	}
	return flow, err
}

// flood begins requests and reads no answer, until kube-apiserver lets the account wait or refuses.
func (a *asker) flood(t *testing.T) (stop func()) {
	t.Helper()
	var ends []func()
	stop = func() {
		for _, end := range ends {
			end()
		}
	}
	for range 4 * seats {
		_, end, err := a.begin(t.Context(), noAnswer)
		if err != nil {
			t.Logf("%d requests of %s use up its level: %v", len(ends), a.user, err)
			return stop
		}
		ends = append(ends, end)
	}
	stop()
	t.Fatalf("%d unread answers do not use up the level of %s, so this test proves nothing", 4*seats, a.user)
	return nil
}
