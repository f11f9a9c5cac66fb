package observe_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/observe/loglevel"
	"github.com/trivet-dev/trivet/test/lab/httpaccesstest"
)

func TestLogLevel_ReturnsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := observe.LogConfig{Level: "warn"}
		level := observe.NewLogLevel(cfg)
		var out bytes.Buffer
		logger := observe.NewLoggerAt(&out, cfg, level)
		logs := func(want bool) {
			t.Helper()
			out.Reset()
			logger.Debug("detail")
			if got := out.Len() > 0; got != want {
				t.Errorf("debug is logged: %t, want %t", got, want)
			}
		}
		logs(false)
		level.Set(slog.LevelDebug, 10*time.Minute)
		logs(true)
		if state := level.State(); state.Level != "debug" || state.Configured != "warn" || !state.Until.Equal(time.Now().Add(10*time.Minute)) {
			t.Errorf("State() = %+v", state)
		}
		time.Sleep(5 * time.Minute)
		level.Set(slog.LevelDebug, 10*time.Minute) // the second time counts
		time.Sleep(6 * time.Minute)
		logs(true)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		logs(false)
		level.Set(slog.LevelDebug, time.Hour)
		level.Reset()
		logs(false)
		if state := level.State(); state.Until != nil || state.Level != "warn" {
			t.Errorf("State() after Reset = %+v", state)
		}
	})
}

// To change the level takes the right to put the path. The right to read is not enough.
func TestAdmin_LogLevelForEachCaller(t *testing.T) {
	callers := httpaccesstest.New(t)
	level := observe.NewLogLevel(observe.LogConfig{})
	var log bytes.Buffer
	address := serveTLS(t, observe.AdminDeps{LogLevel: level, Access: callers.Access, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	do := func(caller httpaccesstest.Caller, method, query string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+address+loglevel.Path+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := callers.Client(caller).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var body bytes.Buffer
		if _, err := body.ReadFrom(response.Body); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, body.String()
	}
	for caller, want := range map[httpaccesstest.Caller]int{
		httpaccesstest.None: http.StatusUnauthorized, httpaccesstest.Forger: http.StatusUnauthorized,
		httpaccesstest.Stranger: http.StatusForbidden, httpaccesstest.Viewer: http.StatusForbidden,
	} {
		if code, body := do(caller, http.MethodPut, "?level=debug"); code != want {
			t.Errorf("PUT by %s: %d %s, want %d", caller, code, body, want)
		}
		if got := level.State().Level; got != "info" {
			t.Fatalf("%s has changed the level to %s", caller, got)
		}
	}
	code, body := do(httpaccesstest.Admin, http.MethodPut, "?level=debug&for=2m")
	var state loglevel.State
	if err := json.Unmarshal([]byte(body), &state); err != nil || code != http.StatusOK || state.Level != "debug" || state.Until == nil {
		t.Errorf("PUT by admin: %d %s %v", code, body, err)
	}
	if !strings.Contains(log.String(), "level=debug for=2m user=admin") {
		t.Errorf("the log does not say which user changed the level:\n%s", &log)
	}
	if code, body := do(httpaccesstest.Viewer, http.MethodGet, ""); code != http.StatusOK || !strings.Contains(body, `"level":"debug"`) {
		t.Errorf("GET by viewer: %d %s", code, body)
	}
	for _, query := range []string{"", "?level=loud", "?level=debug&for=-1s", "?level=debug&for=25h", "?level=debug&for=x"} {
		if code, body := do(httpaccesstest.Admin, http.MethodPut, query); code != http.StatusBadRequest {
			t.Errorf("PUT %s: %d %s, want 400", query, code, body)
		}
	}
	if code, _ := do(httpaccesstest.Admin, http.MethodDelete, ""); code != http.StatusOK || level.State().Level != "info" {
		t.Errorf("DELETE: %d, level %s", code, level.State().Level)
	}
	if code, _ := do(httpaccesstest.Admin, http.MethodPut, "/"); code == http.StatusOK {
		t.Errorf("PUT of another path: %d", code)
	}
}

// A person with the right must not hide a change by a level that drops warnings before.
func TestAdmin_NoLevelHidesAChangeOfTheLevel(t *testing.T) {
	callers := httpaccesstest.New(t)
	cfg := observe.LogConfig{Level: "info"}
	level := observe.NewLogLevel(cfg)
	var log bytes.Buffer
	address := serveTLS(t, observe.AdminDeps{LogLevel: level, Access: callers.Access, Logger: observe.NewLoggerAt(&log, cfg, level)})
	for _, change := range []string{"level=error&for=24h", "level=debug&for=3m"} {
		log.Reset()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://"+address+loglevel.Path+"?"+change, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := callers.Client(httpaccesstest.Admin).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK || !strings.Contains(log.String(), "user=admin") {
			t.Errorf("PUT %s: %s; the log does not say which user changed the level: %q", change, response.Status, &log)
		}
	}
}
