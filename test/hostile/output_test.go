package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/webtest"
)

// checkOutput fails unless each answer of the gateway is complete and valid, and no output of the
// command line controls a terminal.
func (w *world) checkOutput(routes []string, commands ...[]string) {
	w.Helper()
	shown := false
	for _, route := range routes {
		body, err := checkJSON("http://" + w.httpAddress + route)
		if err != nil {
			w.Errorf("%s: %v", route, err)
		}
		shown = shown || bytes.Contains(body, []byte("img src=x"))
	}
	if !shown {
		w.Error("no answer has the text of the objects, so the test shows nothing")
	}
	for _, arguments := range commands {
		w.checkCommand(arguments)
	}
	if *long {
		w.checkPage()
	}
}

// checkPage fails if the page makes an element or runs a script of the text of objects.
func (w *world) checkPage() {
	w.Helper()
	window := webtest.StartBrowser(w).Open(w, "http://"+w.httpAddress+"/")
	window.Wait(w, `document.querySelector("trivet-summary time") !== null`, "true")
	window.Eval(w, `document.querySelectorAll("details").forEach((fold) => { fold.open = true })`)
	for _, panel := range []string{"#node/" + w.tenant + "-text", "#service/" + w.tenant + "/status", "#service/" + w.tenant + "/refused-0"} {
		window.Eval(w, `location.hash = `+strconv.Quote(panel))
		window.Wait(w, `document.readyState`, "complete")
		window.Wait(w, `document.body.textContent.includes(`+strconv.Quote(w.tenant)+`)`, "true")
		window.Wait(w, `document.querySelectorAll("main img, main script, [onerror]").length`, "0")
		window.Wait(w, `document.title.includes("owned") || typeof globalThis.owned !== "undefined"`, "false")
		window.Wait(w, `[...document.querySelectorAll("a")].filter((link) => !["http:", "https:"].includes(link.protocol)).length`, "0")
	}
}

func checkJSON(url string) ([]byte, error) {
	reply, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	switch {
	case err != nil:
		return nil, err
	case reply.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %.500s", reply.Status, body)
	case !json.Valid(body) || !utf8.Valid(body):
		return nil, fmt.Errorf("the answer is no JSON: %.500q", body)
	case reply.Header.Get("Content-Type") != "application/json" || reply.Header.Get("X-Content-Type-Options") != "nosniff":
		return nil, fmt.Errorf("the headers let a browser guess the type: %v", reply.Header)
	}
	return body, nil
}

// checkCommand fails if a command does not know its arguments or prints a character that a terminal
// obeys.
func (w *world) checkCommand(arguments []string) {
	w.Helper()
	var output bytes.Buffer
	command := exec.CommandContext(w.Context(), gobuild.Command(w, "trivet"), append(arguments, "--server="+w.grpcAddress)...)
	command.Stdout, command.Stderr = &output, &output
	command.Env = append(os.Environ(), "HOME="+w.dir, "XDG_RUNTIME_DIR="+w.dir)
	if err := command.Run(); err != nil {
		code := command.ProcessState.ExitCode()
		if code == 64 || code == 70 || strings.Contains(output.String(), "panic:") {
			w.Errorf("trivet %s: %v\n%.2000q", strings.Join(arguments, " "), err, output.String())
			return
		}
	}
	if at := controlCharacter(output.Bytes()); at >= 0 {
		w.Errorf("trivet %s prints a control character: %.200q", strings.Join(arguments, " "), output.Bytes()[max(at-100, 0):])
	}
	if output.Len() == 0 {
		w.Errorf("trivet %s prints nothing", strings.Join(arguments, " "))
	}
}

// controlCharacter returns the place of the first character other than a line break that a terminal
// obeys, or of the first byte that is not UTF-8; -1 for none.
func controlCharacter(output []byte) int {
	for at := 0; at < len(output); {
		r, size := utf8.DecodeRune(output[at:])
		if r == utf8.RuneError && size == 1 || r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029') {
			return at
		}
		at += size
	}
	return -1
}
