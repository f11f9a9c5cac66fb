package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// incompleteNodes have heartbeats. The shards of both replicas have some of them.
	incompleteNodes = 30
	// incompleteTime is for how long answers are read after a replica was killed: its term ends,
	// the other replica claims its shards, and reads what they have.
	incompleteTime = 15 * time.Second
	// filledTimeout bounds the half minute in which agents find the replica of a shard.
	filledTimeout = 2 * time.Minute
)

// A replica of leasesvc is killed. Until the other one has its shards, each list and each watch
// either has everything or names what is missing.
func TestGateway_AListThatLacksShardsNamesThem(t *testing.T) {
	t.Parallel() // it mostly waits, and needs Nodes only
	cluster, kube := testkit.Cluster(t), testkit.Kube(t)
	names := nodesWithZone(t, kube, "incomplete", "zone-a", incompleteNodes)
	page := "https://" + testkit.FreeAddress(t)
	gateway := serve(t, cluster, "gateway", "--cluster=incomplete", "--http-listen="+strings.TrimPrefix(page, "https://"))
	first := serve(t, cluster, "leasesvc", "--cluster=incomplete", "--loops=*,node-health")
	testkit.Eventually(t, 30*time.Second, first.ready)
	second := serve(t, cluster, "leasesvc", "--cluster=incomplete", "--loops=*,node-health")
	beat(t, names, first.grpc, second.grpc)
	lists := []string{"/v1/nodes", "/v1/leases"}
	testkit.Eventually(t, filledTimeout, func() error {
		for _, path := range lists {
			if got := list(page+path, names); got.err != nil || got.items != incompleteNodes || got.missing > 0 {
				return fmt.Errorf("%s: %+v", path, got)
			}
		}
		return bothLead(page)
	})

	first.stop(t, syscall.SIGKILL, 10*time.Second)
	end := time.Now().Add(incompleteTime)
	var running sync.WaitGroup
	for _, path := range lists {
		running.Go(func() { checkNoSilentGap(t, end, path, func() answered { return list(page+path, names) }) })
		running.Go(func() {
			checkNoSilentGap(t, end, path+":watch", func() answered { return initialEvents(t, page+path+":watch", names) })
		})
	}
	running.Go(func() {
		checkNoSilentGap(t, end, "trivet nodes", func() answered { return printed(t, gateway.grpc, names) })
	})
	running.Wait()
	testkit.Eventually(t, filledTimeout, func() error {
		for _, path := range lists {
			if got := list(page+path, names); got.items != incompleteNodes || got.missing > 0 {
				return fmt.Errorf("%s: %+v", path, got)
			}
		}
		return nil
	})
}

// answered is one answer: how many of the wanted items it has, and how many missing parts it names.
type answered struct {
	items, missing int
	err            error
}

// checkNoSilentGap reads answers until end. An error is no short answer.
func checkNoSilentGap(t *testing.T, end time.Time, what string, read func() answered) {
	var whole, partial int
	for time.Now().Before(end) {
		got := read()
		switch {
		case got.err != nil:
		case got.missing > 0:
			partial++
		case got.items == incompleteNodes:
			whole++
		default:
			t.Errorf("%s has %d of %d items and names nothing that is missing", what, got.items, incompleteNodes)
			return
		}
		time.Sleep(50 * time.Millisecond) // the rate of the questions
	}
	t.Logf("%s: %d whole and %d partial answers", what, whole, partial)
	if whole == 0 && partial == 0 {
		t.Errorf("%s never answered", what)
	}
}

// list reads a list of the HTTP API, which has one page.
func list(url string, wanted []string) answered {
	code, body, err := fetch(url)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d: %s", code, body)
	}
	var found struct {
		Nodes, Leases []struct{ Name string }
		Missing       []json.RawMessage
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &found)
	}
	got := answered{missing: len(found.Missing), err: err}
	for _, item := range append(found.Nodes, found.Leases...) {
		if isWanted(item.Name, wanted) {
			got.items++
		}
	}
	return got
}

// initialEvents reads a new watch up to the bookmark that ends its initial events.
func initialEvents(t *testing.T, url string, wanted []string) answered {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return answered{err: err}
	}
	client, err := httpClient(identitiesOf(t).admin)
	if err != nil {
		return answered{err: err}
	}
	reply, err := client.Do(request)
	if err != nil {
		return answered{err: err}
	}
	defer reply.Body.Close()
	got := answered{}
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Result *struct {
				Type        string
				Node, Lease *struct{ Name string }
				Bookmark    *struct {
					InitialEventsEnd bool
					Missing          []json.RawMessage
				}
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Result == nil {
			return answered{err: fmt.Errorf("line %q: %w", lines.Text(), err)}
		}
		event := line.Result
		switch {
		case event.Bookmark != nil && event.Bookmark.InitialEventsEnd:
			got.missing = len(event.Bookmark.Missing)
			return got
		case event.Node != nil && isWanted(event.Node.Name, wanted), event.Lease != nil && isWanted(event.Lease.Name, wanted):
			got.items++
		}
	}
	return answered{err: fmt.Errorf("the watch ended: %w", lines.Err())}
}

// printed runs `trivet nodes`. An exit code other than 0 says that something is missing.
func printed(t *testing.T, server string, wanted []string) answered {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	output, err := trivet(ctx, t, server, "nodes").Output()
	if err != nil {
		return answered{missing: 1}
	}
	got := answered{}
	for _, line := range strings.Split(string(output), "\n") {
		if fields := strings.Fields(line); len(fields) > 0 && isWanted(fields[0], wanted) {
			got.items++
		}
	}
	return got
}

// isWanted reports whether a resource name ends with the name of a Node of the test.
func isWanted(name string, wanted []string) bool {
	prefix := strings.TrimSuffix(wanted[0], "0000")
	return strings.HasPrefix(name[strings.LastIndex(name, "/")+1:], prefix)
}

// bothLead returns nil once two replicas of leasesvc lead shards.
func bothLead(page string) error {
	code, body, err := fetch(page + "/v1/shards?page_size=5000")
	if err != nil || code != http.StatusOK {
		return fmt.Errorf("%d: %w", code, err)
	}
	var found struct {
		Shards []struct{ Service, LeaderID string }
	}
	if err := json.Unmarshal([]byte(body), &found); err != nil {
		return err
	}
	leaders := map[string]int{}
	for _, shard := range found.Shards {
		if shard.Service == "leasesvc" {
			leaders[shard.LeaderID]++
		}
	}
	if len(leaders) != 2 || leaders[""] > 0 {
		return fmt.Errorf("the leaders of leasesvc are %v, want two", leaders)
	}
	return nil
}

// nodesWithZone creates ready Nodes, which are deleted after the test.
func nodesWithZone(t *testing.T, kube kubernetes.Interface, prefix, zone string, n int) []string {
	t.Helper()
	var names []string
	for i := range n {
		name := fmt.Sprintf("%s-%04d", prefix, i)
		node, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kube.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}
		if _, err := kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// beat sends heartbeats of Nodes until the test ends, each with the certificate of its Node.
func beat(t *testing.T, nodes []string, targets ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for _, node := range nodes {
		files, err := identitiesOf(t).Files("node-"+node, certs.NodeLeaf(node))
		if err != nil {
			t.Fatal(err)
		}
		a, err := agent.New(agent.Config{
			Targets: targets, Holders: []agent.Holder{{Class: "node", Name: node, BootID: "boot-1"}},
			Dial: func(target string) (*grpc.ClientConn, error) {
				return rpcclient.Dial(target, rpcclient.Config{TLS: files}, slog.New(slog.DiscardHandler))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = a.Run(ctx) }) // ends with ctx
	}
}
