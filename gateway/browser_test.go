package gateway_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// browser is headless Chromium. It speaks the DevTools protocol over two pipes: JSON messages that
// end with a zero byte. It is for one goroutine.
type browser struct {
	send    *os.File
	receive *bufio.Reader
	last    int
}

// window is one window of a browser.
type window struct {
	browser *browser
	session string
}

// startBrowser starts a browser with a profile of its own until the test ends. It skips the test if
// the machine has no browser.
func startBrowser(t *testing.T) *browser {
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
		"--disable-component-update", "--disable-sync", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir())
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.ExtraFiles = []*os.File{fromTest, toTest} // 3 and 4 in the browser
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	fromTest.Close()
	toTest.Close()
	b := &browser{send: send, receive: bufio.NewReader(receive)}
	t.Cleanup(func() {
		_ = b.call("", "Browser.close", map[string]any{}, &struct{}{}) // what remains is killed
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
		_ = errors.Join(send.Close(), receive.Close())
	})
	return b
}

// call sends one command and decodes its result. Events that arrive before the result are dropped.
func (b *browser) call(session, method string, params, result any) error {
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

// open opens a window that shows a page.
func (b *browser) open(t *testing.T, url string) window {
	t.Helper()
	var target struct{ TargetID string }
	if err := b.call("", "Target.createTarget", map[string]any{"url": url, "newWindow": true}, &target); err != nil {
		t.Fatal(err)
	}
	var attached struct{ SessionID string }
	if err := b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		t.Fatal(err)
	}
	return window{browser: b, session: attached.SessionID}
}

// text returns the value of a JavaScript expression in the window as text.
func (w window) text(expression string) (string, error) {
	var answer struct {
		Result struct{ Value any }
	}
	err := w.browser.call(w.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	return fmt.Sprint(answer.Result.Value), err
}
