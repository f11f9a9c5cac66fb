package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
)

// event is a message of a candidate with the time at which this process read it.
type event struct {
	at    time.Time
	from  *process
	what  message
	shard int
}

// left is the event of a candidate's exit.
const left message = "left"

// process is one candidate.
type process struct {
	config   candidateConfig
	command  *exec.Cmd
	stdin    io.Closer
	stderr   bytes.Buffer // may be read after the exit
	requests atomic.Int64 // to kube-apiserver
	err      error        // the result of the process, after its exit
	// exitRequested is true if this process requested the exit.
	exitRequested bool
}

// startProcess starts a candidate. It sends the candidate's messages to events in order, and its
// exit last.
func startProcess(c candidateConfig, events chan<- event) (*process, error) {
	value, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{config: c, command: exec.Command(program)}
	p.command.Env = append(os.Environ(), candidateVariable+"="+string(value))
	p.command.Stderr = &p.stderr
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go p.listen(stdout, events)
	return p, nil
}

func (p *process) listen(stdout io.Reader, events chan<- event) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		e := event{at: time.Now(), from: p}
		if _, err := fmt.Sscanf(lines.Text(), "%s %d", &e.what, &e.shard); err != nil {
			continue // incomplete because of a kill
		}
		if e.what == request {
			p.requests.Add(1)
			continue
		}
		events <- e
	}
	p.err = p.command.Wait()
	events <- event{at: time.Now(), from: p, what: left}
}

// kill ends the candidate as a crash does: it releases nothing, and its keys remain.
func (p *process) kill() error {
	p.exitRequested = true
	return p.command.Process.Kill()
}

// stop asks the candidate to release all shards and to exit.
func (p *process) stop() error {
	p.exitRequested = true
	return p.stdin.Close()
}

// failure describes an unexpected exit of a candidate.
func (p *process) failure() error {
	if p.exitRequested {
		return nil
	}
	return fmt.Errorf("candidate %s ended by itself: %w\n%s", p.config.ID, errors.Join(p.err, errLeft), p.stderr.String())
}

var errLeft = errors.New("its standard output was closed")

// cpu returns the CPU time of the candidate so far.
func (p *process) cpu() (time.Duration, error) { return childprocess.CPU(p.command.Process.Pid) }
