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

	"golang.org/x/sys/unix"
)

// event is what a candidate said, and when this process read it.
type event struct {
	at    time.Time
	from  *process
	what  word
	shard int
}

// left is said for a candidate when its process has ended.
const left word = "left"

// process is one candidate.
type process struct {
	seat     seat
	command  *exec.Cmd
	stdin    io.Closer
	stderr   bytes.Buffer // to be read once the process has left
	requests atomic.Int64 // to kube-apiserver
	err      error        // how it ended, once it has left
	// dismissed says that this process wanted it to end.
	dismissed bool
}

// startProcess starts a candidate. What it says is sent to events in order, and in the end that it
// has left.
func startProcess(s seat, events chan<- event) (*process, error) {
	value, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{seat: s, command: exec.Command(program)}
	p.command.Env = append(os.Environ(), seatVariable+"="+string(value))
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
			continue // cut off by a kill
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

// kill ends the candidate as a crash does: it can do nothing any more, and its keys stay.
func (p *process) kill() error {
	p.dismissed = true
	return p.command.Process.Kill()
}

// stop asks the candidate to give up all that it holds and to leave.
func (p *process) stop() error {
	p.dismissed = true
	return p.stdin.Close()
}

// failure says how a candidate ended that should not have.
func (p *process) failure() error {
	if p.dismissed {
		return nil
	}
	return fmt.Errorf("candidate %s ended by itself: %w\n%s", p.seat.ID, errors.Join(p.err, errLeft), p.stderr.String())
}

var errLeft = errors.New("its standard output was closed")

// cpu is the CPU time that the candidate has used so far, from the kernel's own clock for the
// process: the ticks in /proc are too coarse for one that sleeps most of the time.
func (p *process) cpu() (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: all that the scheduler gave to any of its threads
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^p.command.Process.Pid<<3|scheduled), &used); err != nil {
		return 0, fmt.Errorf("CPU clock of candidate %s: %w", p.seat.ID, err)
	}
	return time.Duration(used.Nano()), nil
}
