package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/gateway"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// pageWatches are the watches of one page.
var pageWatches = []string{"/v1/status:watch?interval=1s", "/v1/nodes:watch", "/v1/serviceslices:watch", "/v1/findings:watch"}

// combinedLine is a line of a combined stream.
type combinedLine struct {
	Watch  int
	Result *struct {
		Type        string
		ResumeToken string
		Node        *struct{ Name string }
		Bookmark    *struct {
			InitialEventsEnd bool
			Missing          []struct{ ReplicaID, Message string }
		}
	}
	Error *errorJSON
}

// combinedStream reads a combined stream until the test ends.
type combinedStream struct{ lines chan combinedLine }

func openCombined(t *testing.T, client *http.Client, service *gateway.Service, watches ...string) combinedStream {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+service.HTTPAddress()+"/v1/watch?"+url.Values{"watch": watches}.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	response, err := client.Do(request.WithContext(ctx))
	if err != nil {
		t.Fatalf("open a combined stream: %v", err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		t.Fatalf("a combined stream: %s", response.Status)
	}
	lines := make(chan combinedLine, 1000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
			var line combinedLine
			if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
				line.Error = &errorJSON{Message: fmt.Sprintf("%v in %s", err, scanner.Text())}
			}
			lines <- line
		}
	}()
	return combinedStream{lines: lines}
}

// next returns the next line that is wanted.
func (s combinedStream) next(t *testing.T, what string, wanted func(combinedLine) bool) combinedLine {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case line, open := <-s.lines:
			if !open {
				t.Fatalf("the combined stream ended before %s", what)
			}
			if wanted(line) {
				return line
			}
		case <-limit:
			t.Fatalf("no %s within a minute", what)
		}
	}
}

func isBookmarkOf(watch int) func(combinedLine) bool {
	return func(line combinedLine) bool {
		return line.Watch == watch && line.Result != nil && line.Result.Bookmark != nil
	}
}

func isNode(watch int, name string) func(combinedLine) bool {
	return func(line combinedLine) bool {
		return line.Watch == watch && line.Result != nil && line.Result.Node != nil && line.Result.Node.Name == name
	}
}

// Five pages and a question fit into the six connections that a browser opens. Further windows of a
// browser share one stream; see TestPage_EightWindowsOfOneBrowserAreAlive.
func TestHTTP_AStreamOfAllWatchesTakesOneConnection(t *testing.T) {
	t.Parallel()
	leasesvc := newLeasesvc("l1")
	leasesvc.put("node-1", "a", nodev1.NodeHealth_HEALTH_READY)
	_, l1 := leasesvc.start(t, "l1")
	service := startGateway(t, newDirectory(l1), longTimeout)
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 6}}
	t.Cleanup(client.CloseIdleConnections)

	var pages []combinedStream
	for range 5 {
		pages = append(pages, openCombined(t, client, service, pageWatches...))
	}
	for _, page := range pages {
		seen := map[string]bool{}
		page.next(t, "status, Node and error of slicesvc", func(line combinedLine) bool {
			seen["status"] = seen["status"] || line.Watch == 0 && line.Result != nil
			seen["node"] = seen["node"] || isNode(1, "nodes/node-1")(line)
			seen["error"] = seen["error"] || line.Watch == 2 && line.Error != nil && line.Error.Code == 14
			return seen["status"] && seen["node"] && seen["error"]
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	question, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+service.HTTPAddress()+"/v1/nodes", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(question)
	if err != nil {
		t.Fatalf("a question beside five pages: %v", err)
	}
	answer.Body.Close()
	leasesvc.put("node-2", "a", nodev1.NodeHealth_HEALTH_READY)
	for _, page := range pages {
		page.next(t, "change", isNode(1, "nodes/node-2"))
	}
}

// A watch that fails ends alone, with its error, and each watch resumes with its own token.
func TestHTTP_WatchesOfACombinedStreamAreIndependent(t *testing.T) {
	t.Parallel()
	leasesvc := newLeasesvc("l1")
	leasesvc.put("node-1", "a", nodev1.NodeHealth_HEALTH_READY)
	_, l1 := leasesvc.start(t, "l1")
	service := startGateway(t, newDirectory(l1), longTimeout)
	first := openCombined(t, nil, service, "/v1/nodes:watch", "/v1/nodes:watch?resume_token=none", "/v1/nodes:watch?color=red", "/v1/nothing:watch")
	token, failed := "", map[int]string{}
	first.next(t, "bookmark and three errors", func(line combinedLine) bool {
		if isBookmarkOf(0)(line) {
			token = line.Result.ResumeToken
		}
		if line.Error != nil {
			failed[line.Watch] = line.Error.Message
			for _, detail := range line.Error.Details {
				failed[line.Watch] += " " + detail.Reason
			}
		}
		return token != "" && len(failed) == 3
	})
	for watch, reason := range map[int]string{1: "RESUME_TOKEN_EXPIRED", 2: "VALIDATION_FAILED", 3: "UNKNOWN_PATH"} {
		if !strings.Contains(failed[watch], reason) {
			t.Errorf("watch %d ended with %q, want %s", watch, failed[watch], reason)
		}
	}
	leasesvc.put("node-2", "a", nodev1.NodeHealth_HEALTH_READY)
	first.next(t, "change beside the failed watches", isNode(0, "nodes/node-2"))

	second := openCombined(t, nil, service, "/v1/nodes:watch?resume_token="+url.QueryEscape(token))
	line := second.next(t, "event", func(line combinedLine) bool { return line.Result != nil })
	if line.Result.Node == nil || line.Result.Node.Name != "nodes/node-2" {
		t.Errorf("the first event after the token is %+v, want nodes/node-2", line.Result)
	}
}

func TestHTTP_ACombinedStreamHasWatchesOnly(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(), longTimeout)
	for _, query := range []string{
		"", "?watch=", "?watch=/v1/nodes", "?watch=/v1/watch", "?watch=http://example.com/v1/nodes:watch", "?watch=//example.com/v1/nodes:watch",
		"?watch=/v1/nodes:watch&color=red", "?" + strings.Repeat("watch=/v1/nodes:watch&", 17), "?watch=/v1/nodes:watch%3Fx=%25FF", "?watch=/clusters/test/v1/nodes:watch",
	} {
		response, body := send(t, service, http.MethodGet, "/v1/watch"+query)
		if response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "VALIDATION_FAILED") {
			t.Errorf("GET /v1/watch%s: %s %s, want 400 with VALIDATION_FAILED", query, response.Status, body)
		}
	}
}

func TestHTTP_ACombinedStreamIsForGET(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(), longTimeout)
	for method, code := range map[string]int{http.MethodPut: 405, http.MethodPost: 415} {
		if response, body := send(t, service, method, "/v1/watch?watch=/v1/nodes:watch"); response.StatusCode != code {
			t.Errorf("%s /v1/watch: %s %s, want %d", method, response.Status, body, code)
		}
	}
}

// protobuf requires UTF-8, so that text of another encoding is no request.
func TestHTTP_TextThatIsNotUTF8IsRefused(t *testing.T) {
	t.Parallel()
	_, l1 := newLeasesvc("l1").start(t, "l1")
	service := startGateway(t, newDirectory(l1), longTimeout)
	for _, path := range []string{
		"/v1/nodes/%FF", "/v1/nodes/node-%C3", "/v1/nodes?page_token=%FF", "/v1/namespaces/%FF/leases/a", "/v1/findings?codes=%80", "/clusters/test/v1/nodes/%FF",
		"/v1/nodes?%FF=1", "/v1/nodes/%FF:explain", "/v1/nodes:watch?resume_token=%FF", "/v1/nodes?page_token=%zz",
	} {
		response, body := send(t, service, http.MethodGet, path)
		if response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "VALIDATION_FAILED") {
			t.Errorf("GET %s: %s %s, want 400 with VALIDATION_FAILED", path, response.Status, body)
		}
	}
}
