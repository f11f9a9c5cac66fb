package gateway_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// startWithNodes runs a gateway over two replicas and 12 nodes; n03 is silent in zone z:b.
func startWithNodes(t *testing.T) *gateway.Service {
	t.Helper()
	k := newLeasesvcWithNodes(12, "l1", "l2")
	k.put("n03", "z:b", silent)
	_, m1 := k.start(t, "l1")
	_, m2 := k.start(t, "l2")
	return startGateway(t, newDirectory(m1, m2), longTimeout)
}

func TestHTTP_RoutesOfNodes(t *testing.T) {
	t.Parallel()
	service := startWithNodes(t)
	tests := []struct {
		path, want string
	}{
		{path: "/v1/nodes/n03", want: `"health":"HEALTH_SILENT"`},
		{path: "/v1/nodes/n03:explain", want: `"brokenIndex":1`},
		{path: "/v1/nodes?healths=HEALTH_SILENT", want: `"name":"nodes/n03"`},
		{path: "/v1/nodes?healths=6", want: `"nodes":[]`},
		{path: "/v1/nodes?zones=zones/z%3Ab", want: `"name":"nodes/n03"`},
		{path: "/v1/zones", want: `"name":"zones/z:b"`},
		{path: "/v1/leases?states=STATE_ALIVE", want: `"name":"namespaces/kube-node-lease/leases/n00"`},
		{path: "/v1/namespaces/kube-node-lease/leases", want: `"name":"namespaces/kube-node-lease/leases/n11"`},
		{path: "/v1/namespaces/-/leases", want: `"name":"namespaces/kube-node-lease/leases/n11"`},
		{path: "/v1/namespaces/kube-node-lease/leases/n05", want: `"state":"STATE_ALIVE"`},
	}
	for _, test := range tests {
		t.Run(test.path, func(t *testing.T) {
			response, body := send(t, service, http.MethodGet, test.path)
			if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), `": `, `":`), test.want) {
				t.Errorf("%s: %s, want 200 with %s", response.Status, body, test.want)
			}
			if origin := response.Header.Get("Access-Control-Allow-Origin"); origin != "" {
				t.Errorf("scripts of %q may read it", origin)
			}
		})
	}
}

func TestHTTP_ErrorsOfNodes(t *testing.T) {
	t.Parallel()
	service := startWithNodes(t)
	tests := []struct {
		name, method, path, reason string
		status                     int
	}{
		{name: "no such node", path: "/v1/nodes/none", status: 404, reason: "NODE_NOT_FOUND"},
		{name: "no such lease", path: "/v1/namespaces/kube-node-lease/leases/none", status: 404, reason: "LEASE_NOT_FOUND"},
		{name: "a name that none can have", path: "/v1/nodes/No%20Body", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a health that is none", path: "/v1/nodes?healths=FINE", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a negative page", path: "/v1/nodes?pageSize=-1", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a number that is none", path: "/v1/leases?pageSize=many", status: 400, reason: "VALIDATION_FAILED"},
		{name: "noise for a token", path: "/v1/nodes?pageToken=noise", status: 400, reason: "INVALID_PAGE_TOKEN"},
		{name: "a parent that is none", path: "/v1/leases?parent=nodes", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a filter that is misspelt", path: "/v1/nodes?heath=HEALTH_SILENT", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a filter that only lists have", path: "/v1/nodes:watch?pageSize=1", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a parameter of what takes none", path: "/v1/zones?zone=z", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a name beside that in the path", path: "/v1/nodes/n00?name=nodes/n01", status: 400, reason: "VALIDATION_FAILED"},
		{name: "nothing is written", method: http.MethodPut, path: "/v1/nodes", status: 405, reason: "METHOD_NOT_ALLOWED"},
		{name: "nothing is deleted", method: http.MethodDelete, path: "/v1/nodes/n00", status: 405, reason: "METHOD_NOT_ALLOWED"},
		{name: "an unknown verb", path: "/v1/nodes/n00:evict", status: 400, reason: "VALIDATION_FAILED"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			method := test.method
			if method == "" {
				method = http.MethodGet
			}
			response, body := send(t, service, method, test.path)
			var got errorJSON
			decode(t, body, &got)
			if response.StatusCode != test.status || len(got.Details) == 0 || got.Details[0].Reason != test.reason || got.Details[0].Domain != "trivet.dev" {
				t.Errorf("%s: %s, want %d with reason %s", response.Status, body, test.status, test.reason)
			}
		})
	}
}

func TestHTTP_PagesOfNodesGoOnByToken(t *testing.T) {
	t.Parallel()
	service := startWithNodes(t)
	var got []string
	query := url.Values{"pageSize": {"5"}}
	for range 12 {
		_, body := send(t, service, http.MethodGet, "/v1/nodes?"+query.Encode())
		var page struct {
			Nodes []struct {
				Name string `json:"name"`
			} `json:"nodes"`
			NextPageToken string `json:"nextPageToken"`
		}
		decode(t, body, &page)
		for _, node := range page.Nodes {
			got = append(got, strings.TrimPrefix(node.Name, "nodes/"))
		}
		if page.NextPageToken == "" {
			break
		}
		query.Set("pageToken", page.NextPageToken)
	}
	var want []string
	for i := range 12 {
		want = append(want, fmt.Sprintf("n%02d", i))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names on all pages (-want +got):\n%s", diff)
	}
}

// The largest page that may be asked for is larger than what gRPC takes by default.
func TestHTTP_LargestPage(t *testing.T) {
	t.Parallel()
	const nodes = 5000
	k := newLeasesvc("l1")
	k.change(func() {
		for i := range nodes {
			name := fmt.Sprintf("nodes/%04d-%s", i, strings.Repeat("x", 240))
			k.nodes[name] = &nodev1.NodeHealth{Name: name, Message: strings.Repeat("It has not been heard. ", 30), Health: silent}
		}
	})
	_, m1 := k.start(t, "l1")
	service := startGateway(t, newDirectory(m1), longTimeout)

	testkit.Eventually(t, time.Minute, func() error { // a busy machine may need more than one timeout of the replica
		response, body := send(t, service, http.MethodGet, fmt.Sprintf("/v1/nodes?pageSize=%d", nodes))
		if response.StatusCode != http.StatusOK || strings.Count(string(body), `"HEALTH_SILENT"`) != nodes {
			return fmt.Errorf("%s: %.300s, want %d nodes", response.Status, body, nodes)
		}
		return nil
	})
}

func TestHTTP_WatchOfNodesStreamsLines(t *testing.T) {
	t.Parallel()
	service := startWithNodes(t)
	response, err := http.DefaultClient.Do(request(t, service, http.MethodGet, "/v1/nodes:watch?zones=zones/z%3Ab"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var lines []string
	for scanner := bufio.NewScanner(response.Body); len(lines) < 2 && scanner.Scan(); {
		var line struct {
			Result struct {
				Type string `json:"type"`
				Node struct {
					Name string `json:"name"`
				} `json:"node"`
			} `json:"result"`
		}
		decode(t, scanner.Bytes(), &line)
		lines = append(lines, line.Result.Type+" "+line.Result.Node.Name)
	}
	if diff := cmp.Diff([]string{"EVENT_TYPE_ADDED nodes/n03", "EVENT_TYPE_BOOKMARK "}, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestHTTP_ForeignNamesReadNoNodes(t *testing.T) {
	t.Parallel()
	service := startWithNodes(t)
	for _, path := range []string{"/v1/nodes", "/v1/nodes:watch", "/v1/leases", "/v1/nodes/n00:explain"} {
		r := request(t, service, http.MethodGet, path)
		r.Host = "rebound.example"
		if response, _ := do(t, r); response.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s under a foreign name: %s, want 421", path, response.Status)
		}
	}
}
