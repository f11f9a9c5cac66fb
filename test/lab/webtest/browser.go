// Package webtest has what tests of the page need: a headless browser, and a gateway that simulates
// a cluster.
package webtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// waitLimit is how long Wait waits. The machine may be busy.
const waitLimit = 20 * time.Second

// Browser is headless Chromium. It speaks the DevTools protocol over two pipes: JSON messages that
// end with a zero byte. It is for one goroutine.
type Browser struct {
	send    *os.File
	receive *bufio.Reader
	last    int
}

// Window is one window of a browser, or a worker.
type Window struct {
	browser *Browser
	session string
}

// StartBrowser starts a browser with a profile of its own until the test ends. It skips the test if
// the machine has no browser.
func StartBrowser(t testing.TB) *Browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("the machine has no chromium on its PATH")
	}
	fromTest, send, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	receive, toTest, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--enable-precise-memory-info", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir())
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.ExtraFiles = []*os.File{fromTest, toTest} // 3 and 4 in the browser
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	fromTest.Close()
	toTest.Close()
	b := &Browser{send: send, receive: bufio.NewReader(receive)}
	t.Cleanup(func() {
		_ = b.call("", "Browser.close", map[string]any{}, &struct{}{}) // what remains is killed
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
		_ = errors.Join(send.Close(), receive.Close())
	})
	return b
}

// call sends one command and decodes its result. Events that arrive before the result are dropped.
func (b *Browser) call(session, method string, params, result any) error {
	b.last++
	message := map[string]any{"id": b.last, "method": method, "params": params}
	if session != "" {
		message["sessionId"] = session
	}
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := b.send.Write(append(text, 0)); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for {
		text, err := b.receive.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(text[:len(text)-1], &answer); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		switch {
		case answer.ID != b.last:
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		default:
			return json.Unmarshal(answer.Result, result)
		}
	}
}

// Open opens a window that shows a page.
func (b *Browser) Open(t testing.TB, url string) Window {
	t.Helper()
	var target struct{ TargetID string }
	if err := b.call("", "Target.createTarget", map[string]any{"url": url, "newWindow": true}, &target); err != nil {
		t.Fatal(err)
	}
	return b.attach(t, target.TargetID)
}

func (b *Browser) attach(t testing.TB, target string) Window {
	t.Helper()
	var attached struct{ SessionID string }
	if err := b.call("", "Target.attachToTarget", map[string]any{"targetId": target, "flatten": true}, &attached); err != nil {
		t.Fatal(err)
	}
	return Window{browser: b, session: attached.SessionID}
}

// Workers returns the shared workers.
func (b *Browser) Workers(t testing.TB) []Window {
	t.Helper()
	var all struct {
		TargetInfos []struct{ TargetID, Type string }
	}
	if err := b.call("", "Target.getTargets", map[string]any{}, &all); err != nil {
		t.Fatal(err)
	}
	var workers []Window
	for _, target := range all.TargetInfos {
		if target.Type == "shared_worker" {
			workers = append(workers, b.attach(t, target.TargetID))
		}
	}
	return workers
}

// HeapBytes returns the size of the live JavaScript objects of the window.
func (w Window) HeapBytes(t testing.TB) float64 {
	t.Helper()
	var used struct{ UsedSize float64 }
	if err := w.browser.call(w.session, "HeapProfiler.collectGarbage", map[string]any{}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	if err := w.browser.call(w.session, "Runtime.getHeapUsage", map[string]any{}, &used); err != nil {
		t.Fatal(err)
	}
	return used.UsedSize
}

// BusySeconds returns the CPU time of the window's main thread until now.
func (w Window) BusySeconds(t testing.TB) float64 {
	t.Helper()
	var all struct {
		Metrics []struct {
			Name  string
			Value float64
		}
	}
	for _, call := range []struct {
		method string
		params map[string]any
	}{{"Performance.enable", map[string]any{"timeDomain": "threadTicks"}}, {"Performance.getMetrics", nil}} {
		if err := w.browser.call(w.session, call.method, call.params, &all); err != nil {
			t.Fatal(err)
		}
	}
	for _, metric := range all.Metrics {
		if metric.Name == "TaskDuration" {
			return metric.Value
		}
	}
	t.Fatal("the browser has no TaskDuration")
	return 0
}

// Resize sets the size of the window in CSS pixels, and the theme: "light" or "dark".
func (w Window) Resize(t testing.TB, width, height int, theme string) {
	t.Helper()
	metrics := map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}
	if err := w.browser.call(w.session, "Emulation.setDeviceMetricsOverride", metrics, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	media := map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": theme}}}
	if err := w.browser.call(w.session, "Emulation.setEmulatedMedia", media, &struct{}{}); err != nil {
		t.Fatal(err)
	}
}

// Press sends a key such as "Tab" or "Enter".
func (w Window) Press(t testing.TB, key string, code int) {
	t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		event := map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
		if err := w.browser.call(w.session, "Input.dispatchKeyEvent", event, &struct{}{}); err != nil {
			t.Fatal(err)
		}
		if key == "Enter" && kind == "rawKeyDown" {
			event["type"], event["text"] = "char", "\r"
			if err := w.browser.call(w.session, "Input.dispatchKeyEvent", event, &struct{}{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Text returns the value of a JavaScript expression in the window as text.
func (w Window) Text(expression string) (string, error) {
	var answer struct {
		Result           struct{ Value any }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := w.browser.call(w.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if err == nil && answer.ExceptionDetails != nil {
		err = fmt.Errorf("%s: %s", answer.ExceptionDetails.Text, answer.ExceptionDetails.Exception.Description)
	}
	return fmt.Sprint(answer.Result.Value), err
}

// Eval returns the value of a JavaScript expression, or fails the test.
func (w Window) Eval(t testing.TB, expression string) string {
	t.Helper()
	text, err := w.Text(expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return text
}

// Wait waits until an expression has a value in the window.
func (w Window) Wait(t testing.TB, expression, value string) {
	t.Helper()
	w.WaitFor(t, waitLimit, expression, value)
}

// WaitFor is Wait with a limit.
func (w Window) WaitFor(t testing.TB, limit time.Duration, expression, value string) {
	t.Helper()
	testkit.Eventually(t, limit, func() error {
		got, err := w.Text(expression)
		if err == nil && got != value {
			err = fmt.Errorf("%s is %q, want %q", expression, got, value)
		}
		return err
	})
}
