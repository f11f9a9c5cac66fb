package terms

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// clock reads the clock that all processes of this machine share. A process that was frozen finds it further on.
func clock() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // only an unknown clock or a bad address can fail
	}
	return now.Nano()
}

// process is a child of this one, from its start to its reaping.
type process struct {
	command *exec.Cmd
	exited  chan struct{} // closed once it is gone
}

// launch starts a command that dies with this process. The thread that starts it is kept until its end, because Linux sends
// the parent's death signal when that thread dies.
func launch(command *exec.Cmd) (*process, error) {
	p := &process{command: command, exited: make(chan struct{})}
	command.SysProcAttr = dyingWithParent()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait() // how it ended shows in what it left
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	return p, nil
}

// signal is an error if the process is gone.
func (p *process) signal(what syscall.Signal) error {
	if err := p.command.Process.Signal(what); err != nil {
		return fmt.Errorf("%v to %s: %w", what, p.command.Path, err)
	}
	return nil
}

// kill ends the process at once. Killing what is gone does nothing.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.exited
}

// stop asks the process to end and kills it if it takes longer than grace, which is then an error.
func (p *process) stop(grace time.Duration) error {
	_ = p.signal(syscall.SIGTERM) // it may be gone
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		p.kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.command.Path, grace)
	}
}
