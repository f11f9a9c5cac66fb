// Package child starts a process, signals it and waits for its end.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a child of this process. Its methods may be called from any goroutine.
type Process struct {
	command *exec.Cmd
	exited  chan struct{}
}

// Start starts a command. On Linux the child is killed when this process dies.
func Start(command *exec.Cmd) (*Process, error) {
	p := &Process{command: command, exited: make(chan struct{})}
	command.SysProcAttr = attributes()
	started := make(chan error)
	go func() {
		// Linux sends the parent death signal when the thread that started the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait() // State has the result.
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	return p, nil
}

// ID returns the process id.
func (p *Process) ID() int { return p.command.Process.Pid }

// Exited is closed when the process has exited and is reaped.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// State describes how the process exited. It may be called once Exited is closed.
func (p *Process) State() *os.ProcessState { return p.command.ProcessState }

// Signal sends a signal. It returns an error if the process has exited.
func (p *Process) Signal(signal syscall.Signal) error {
	if err := p.command.Process.Signal(signal); err != nil {
		return fmt.Errorf("send %v to %s: %w", signal, p.command.Path, err)
	}
	return nil
}

// Kill sends SIGKILL and waits for the exit. It does nothing if the process has exited.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.exited
}

// Wait waits for the exit. After the timeout it kills the process and returns an error.
func (p *Process) Wait(timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not exit within %v", p.command.Path, timeout)
	}
}

// Stop sends SIGTERM and waits for the exit. It returns an error unless the process was running and
// exits with code 0. After the timeout it kills the process.
func (p *Process) Stop(timeout time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("had ended: %w, %v", err, p.State())
	}
	if err := p.Wait(timeout); err != nil {
		return err
	}
	if !p.State().Success() {
		return errors.New("ended with " + p.State().String())
	}
	return nil
}
