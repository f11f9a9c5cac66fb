package abuse

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
)

// roleVariable names what a child process does, settingsVariable has its settings as JSON, and
// placeVariable says where it runs.
const (
	roleVariable     = "TRIVET_ABUSE_ROLE"
	settingsVariable = "TRIVET_ABUSE_SETTINGS"
	placeVariable    = "TRIVET_ABUSE_PLACE"
)

// TestMain runs the tests, or a child process of them.
func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	err := takePlace(place(os.Getenv(placeVariable)))
	if err == nil {
		err = map[string]func() error{"server": serve, "agents": serveFleet, "attacker": attack}[role]()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// settings reads the settings of a child process.
func settings(into any) error {
	return json.Unmarshal([]byte(os.Getenv(settingsVariable)), into)
}

// answerQuestions answers each line of the standard input until it ends.
func answerQuestions(answer func(question, argument string) (any, error)) error {
	encoder := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		question, argument, _ := strings.Cut(lines.Text(), " ")
		value, err := answer(question, argument)
		if err != nil {
			return err
		}
		if err := encoder.Encode(value); err != nil {
			return err
		}
	}
	return nil
}

// child returns the command of a child process. It runs until its standard input ends or its work
// is done, and so it may end after the test's context.
func child(t *testing.T, role string, where place, settings any) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), roleVariable+"="+role, settingsVariable+"="+string(text), placeVariable+"="+string(where))
	command.Stderr = os.Stderr
	return command
}

// process is a child process that answers questions.
type process struct {
	pid int

	mu      sync.Mutex // one question at a time
	ask     io.Writer
	answers *json.Decoder
}

// start starts a process and waits for its first answer. The process ends with the test.
func start(t *testing.T, role string, where place, settings, ready any) *process {
	t.Helper()
	command := child(t, role, where, settings)
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	})
	p := &process{pid: command.Process.Pid, ask: stdin, answers: json.NewDecoder(stdout)}
	if err := p.answers.Decode(ready); err != nil {
		t.Fatalf("%s does not start: %v", role, err)
	}
	return p
}

// question asks the process.
func (p *process) question(t *testing.T, text string, answer any) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintln(p.ask, text); err != nil {
		t.Error(err)
		return
	}
	if err := p.answers.Decode(answer); err != nil {
		t.Errorf("no answer to %q: %v", text, err)
	}
}

// usage returns what the process uses.
func (p *process) usage(t *testing.T) childprocess.Usage {
	t.Helper()
	u, err := childprocess.UsageOf(p.pid)
	if err != nil {
		t.Error(err)
	}
	return u
}

// clientTLS returns the configuration of a client. Without a CertFile it has no certificate.
func clientTLS(files identity.Files) (*tls.Config, error) {
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: serverName, NextProtos: []string{"h2"}}
	authorities, err := os.ReadFile(files.CAFile)
	if err != nil {
		return nil, err
	}
	config.RootCAs.AppendCertsFromPEM(authorities)
	if files.CertFile == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	config.Certificates = []tls.Certificate{pair}
	return config, err
}
