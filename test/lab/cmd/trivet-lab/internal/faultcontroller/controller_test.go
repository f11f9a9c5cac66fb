package faultcontroller

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fakeActions record actions. A target in hangs waits for the end of its context; one in fails
// fails.
type fakeActions struct {
	mu           sync.Mutex // guards done and silent
	done         []string
	silent       map[string]bool
	hangs, fails map[string]bool // by action and target
}

func (a *fakeActions) do(ctx context.Context, action string, f fault.Fault) error {
	name := action + " " + f.String()
	a.mu.Lock()
	a.done = append(a.done, name)
	a.mu.Unlock()
	if a.hangs[name] {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if a.fails[name] {
		return errors.New("no")
	}
	return nil
}

func (a *fakeActions) Break(ctx context.Context, f fault.Fault) (fault.Effect, error) {
	return fault.Effect{Text: "done", Address: "10.0.0.1"}, a.do(ctx, "break", f)
}
func (a *fakeActions) Restore(ctx context.Context, f fault.Fault) error {
	return a.do(ctx, "restore", f)
}
func (a *fakeActions) Release(ctx context.Context, f fault.Fault) error {
	return a.do(ctx, "release", f)
}
func (a *fakeActions) SetSilentNodes(silent map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = silent
}

func (a *fakeActions) isSilent(node string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.silent[node]
}

func (a *fakeActions) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(a.done))
}

// newController returns a running controller, and a function that ends it and returns its error.
func newController(t *testing.T, actions *fakeActions) (*Controller, func() error) {
	t.Helper()
	c := New(actions, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, fault.NewSet(fault.Inventory{
			Zones: map[string][]string{"a": {"n1", "n2"}}, Replicas: []string{"leasesvc-1", "leasesvc-2"}, ClusterIPs: []string{"demo/web"},
		}))
	}()
	stop := sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return c, stop
}

func TestController_BreaksAndRestores(t *testing.T) {
	actions := &fakeActions{}
	c, _ := newController(t, actions)
	f, err := c.Break(t.Context(), fault.Request{Kind: fault.Node, Name: "n1"})
	if err != nil || f.Phase != fault.Broken || f.Effect.Text != "done" || len(f.Steps) == 0 {
		t.Errorf("Break = %+v, %v", f, err)
	}
	refused := new(RefusedError)
	if _, err := c.Break(t.Context(), fault.Request{Kind: fault.Node, Name: "n1"}); !errors.As(err, &refused) {
		t.Errorf("the second Break = %v, want a RefusedError", err)
	}
	if _, faults, err := c.List(t.Context()); err != nil || len(faults) != 1 || !actions.isSilent("n1") {
		t.Errorf("List = %v, %v; n1 is silent: %t", faults, err, actions.isSilent("n1"))
	}
	restored, err := c.Restore(t.Context(), fault.Target{})
	if diff := cmp.Diff([]fault.Target{{Kind: fault.Node, Name: "n1"}}, restored); err != nil || diff != "" {
		t.Errorf("Restore = %v (-want +got):\n%s", err, diff)
	}
	if restored, err := c.Restore(t.Context(), fault.Target{}); err != nil || len(restored) != 0 {
		t.Errorf("Restore of nothing = %v, %v", restored, err)
	}
	if diff := cmp.Diff([]string{"break node n1", "restore node n1"}, actions.all()); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

// A target that hangs holds up no other, and a break that fails is undone.
func TestController_OneBadTargetHoldsUpNoOther(t *testing.T) {
	actions := &fakeActions{
		hangs: map[string]bool{"break service leasesvc-1": true},
		fails: map[string]bool{"break service leasesvc-2": true, "restore zone a": true},
	}
	c, stop := newController(t, actions)
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() {
		_, err := c.Break(ctx, fault.Request{Kind: fault.Service, Name: "leasesvc-1"})
		hung <- err
	}()
	testkit.Eventually(t, time.Minute, func() error {
		if !slices.Contains(actions.all(), "break service leasesvc-1") {
			return errors.New("the break that hangs has not begun")
		}
		return nil
	})
	if _, err := c.Break(t.Context(), fault.Request{Kind: fault.Service, Name: "leasesvc-2"}); err == nil || !strings.Contains(err.Error(), "service leasesvc-2: no") {
		t.Errorf("Break = %v, want the cause", err)
	}
	if _, err := c.Break(t.Context(), fault.Request{Kind: fault.Zone}); err != nil {
		t.Error(err)
	}
	if _, err := c.Restore(t.Context(), fault.Target{Kind: fault.Zone}); err == nil || !strings.Contains(err.Error(), "tried again: no") {
		t.Errorf("Restore = %v, want the cause", err)
	}
	cancel()
	if err := <-hung; !errors.Is(err, context.Canceled) {
		t.Errorf("Break of the target that hangs = %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	got := actions.all()
	for _, want := range []string{"restore service leasesvc-2", "release service leasesvc-1", "release zone a"} {
		if !slices.Contains(got, want) {
			t.Errorf("actions %v, want %s", got, want)
		}
	}
}

func TestController_EndReleasesEverythingAndNamesFailures(t *testing.T) {
	actions := &fakeActions{fails: map[string]bool{"release address demo/web": true}}
	c, stop := newController(t, actions)
	for _, kind := range []fault.Kind{fault.Address, fault.Node, fault.Service} {
		if _, err := c.Break(t.Context(), fault.Request{Kind: kind}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stop(); err == nil || err.Error() != "restore address demo/web: no" {
		t.Errorf("Run = %v, want the failure", err)
	}
	want := []string{"break address demo/web", "break node n1", "break service leasesvc-1", "release address demo/web", "release node n1", "release service leasesvc-1"}
	if diff := cmp.Diff(want, actions.all()); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if _, _, err := c.List(t.Context()); !errors.Is(err, errEnded) {
		t.Errorf("List after the end = %v", err)
	}
}

func TestHandler_ChangesNeedTheTokenAndJSON(t *testing.T) {
	actions := &fakeActions{}
	c, _ := newController(t, actions)
	server := httptest.NewServer(Handler(c, func() float64 { return 0.25 }, "secret"))
	defer server.Close()
	var report Report
	response, err := http.Get(server.URL + Path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&report); err != nil || report.Token != "secret" || report.Cores != 0.25 || len(report.Kinds) != 6 || report.Faults == nil {
		t.Errorf("report = %+v, %v", report, err)
	}
	for name, r := range map[string]struct {
		token, media, method, path, body string
		code                             int
		want                             string
	}{
		"no token":      {"", "application/json", "POST", BreakPath, `{"kind":"node"}`, 403, "token"},
		"wrong token":   {"secre", "application/json", "POST", RestorePath, `{}`, 403, "token"},
		"form":          {"secret", "text/plain", "POST", BreakPath, `{"kind":"node"}`, 415, "application/json"},
		"GET":           {"secret", "application/json", "GET", BreakPath, ``, 405, ""},
		"unknown field": {"secret", "application/json", "POST", BreakPath, `{"kind":"node","path":"/"}`, 400, "unknown field"},
		"too long":      {"secret", "application/json", "POST", BreakPath, `{"kind":"` + strings.Repeat("n", 2*maxBody) + `"}`, 400, "too large"},
		"unknown kind":  {"secret", "application/json", "POST", BreakPath, `{"kind":"<script>"}`, 400, "none of"},
		"not broken":    {"secret", "application/json", "POST", RestorePath, `{"kind":"node","target":"n2"}`, 400, "not broken"},
		"other path":    {"secret", "application/json", "POST", Path + "other", `{}`, 404, ""},
		"right":         {"secret", "application/json; charset=utf-8", "POST", BreakPath, `{"kind":"node","target":"n1"}`, 200, `"phase":"broken"`},
	} {
		request, err := http.NewRequestWithContext(t.Context(), r.method, server.URL+r.path, strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", r.media)
		request.Header.Set(TokenHeader, r.token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != r.code || !strings.Contains(string(body), r.want) {
			t.Errorf("%s: %d %s (%v), want %d and %q", name, response.StatusCode, body, err, r.code, r.want)
		}
	}
	if diff := cmp.Diff([]string{"break node n1"}, actions.all()); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}
