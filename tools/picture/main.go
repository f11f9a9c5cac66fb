// Command picture takes a picture of the page in headless Chromium, once the page has had time to
// fill itself.
//
//	picture --out docs/page.png                     # starts `bin/trivet-lab up` with a simulated cluster
//	picture --out node-7.png --page http://127.0.0.1:7680/#node/node-7 --size 400x900
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	out := flag.String("out", "", "The PNG file to write.")
	page := flag.String("page", "", "The address of the page. Empty: that of `bin/trivet-lab up`, which is started for the picture.")
	size := flag.String("size", "1280x900", "Width and height of the window, in pixels.")
	wait := flag.Duration("wait", 12*time.Second, "How long the page may fill itself.")
	chromium := flag.String("chromium", "chromium", "The browser.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *page, *size, *wait, *chromium); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, page, size string, wait time.Duration, chromium string) error {
	if page == "" {
		address, stop, err := startTrivet(ctx)
		if err != nil {
			return err
		}
		defer stop()
		page = address
	}
	var width, height int
	if _, err := fmt.Sscanf(size, "%dx%d", &width, &height); err != nil {
		return fmt.Errorf("--size %q: %w", size, err)
	}
	b, err := startBrowser(ctx, chromium)
	if err != nil {
		return err
	}
	defer b.close()
	png, err := b.picture(ctx, page, width, height, wait)
	if err != nil {
		return err
	}
	return os.WriteFile(out, png, 0o644)
}

// startTrivet starts a simulated cluster and returns the address of its page and a function that
// stops it.
func startTrivet(ctx context.Context) (string, func(), error) {
	command := exec.CommandContext(ctx, "bin/trivet-lab", "up", "--free-ports", "--nodes", "240", "--services", "60", "--pods", "600")
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	output, err := command.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	command.Stderr = command.Stdout
	if err := command.Start(); err != nil {
		return "", nil, err
	}
	stop := func() {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
	}
	var said []string
	address := ""
	for lines := bufio.NewScanner(output); lines.Scan(); {
		said = append(said, lines.Text())
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && fields[0] == "page" {
			address = fields[1]
		}
		if strings.Contains(lines.Text(), "Ctrl-C stops everything") {
			go func() { // keeps the pipe empty
				for lines.Scan() {
				}
			}()
			return address, stop, nil
		}
	}
	stop()
	return "", nil, fmt.Errorf("bin/trivet-lab up ended:\n%s", strings.Join(said, "\n"))
}

// browser speaks the DevTools protocol over two pipes: JSON messages that end with a zero byte.
type browser struct {
	command *exec.Cmd
	profile string
	send    *os.File
	receive *bufio.Reader
	last    int
}

func startBrowser(ctx context.Context, chromium string) (*browser, error) {
	profile, err := os.MkdirTemp("", "trivet-picture-")
	if err != nil {
		return nil, err
	}
	fromUs, send, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	receive, toUs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+profile)
	command.ExtraFiles = []*os.File{fromUs, toUs} // 3 and 4 in the browser
	if err := command.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(profile))
	}
	fromUs.Close()
	toUs.Close()
	return &browser{command: command, profile: profile, send: send, receive: bufio.NewReader(receive)}, nil
}

func (b *browser) close() {
	b.send.Close()
	_ = b.command.Process.Kill()
	_ = b.command.Wait()
	_ = os.RemoveAll(b.profile)
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

func (b *browser) picture(ctx context.Context, page string, width, height int, wait time.Duration) ([]byte, error) {
	var target struct{ TargetID string }
	if err := b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return nil, err
	}
	var attached struct{ SessionID string }
	if err := b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	var ignored struct{}
	metrics := map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}
	if err := b.call(attached.SessionID, "Emulation.setDeviceMetricsOverride", metrics, &ignored); err != nil {
		return nil, err
	}
	if err := b.call(attached.SessionID, "Page.navigate", map[string]any{"url": page}, &ignored); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(wait):
	}
	var shot struct{ Data string }
	if err := b.call(attached.SessionID, "Page.captureScreenshot", map[string]any{"format": "png"}, &shot); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(shot.Data)
}
