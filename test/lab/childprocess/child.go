// Package childprocess runs programs as children of this process, each in a process group of its
// own. The kernel kills a child when this process ends.
package childprocess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// defaultGrace is longer than leasesvc needs to hand over its shards.
const defaultGrace = 30 * time.Second

// Config describes a child. Log is required.
type Config struct {
	// Name names the child in errors. The default is the name of the program.
	Name string
	// Path is the program. The default is the executable of this process: a test binary that runs a
	// server instead of its tests if a variable of Env asks for it.
	Path string
	Args []string
	// Env is added to the environment of this process. With Bare it is the whole environment.
	Env  []string
	Bare bool
	// Dir is the working directory. The default is that of this process.
	Dir string
	// Log is the path of a file to which the output is appended.
	Log string
	// Grace is the time from SIGTERM to SIGKILL in Stop. The default is 30 s.
	Grace time.Duration
}

// Child is one process, from its start until it was waited for. Its methods are safe for concurrent
// use.
type Child struct {
	name     string
	log      string // path of its combined output
	logFrom  int64  // offset of its own output in that file
	grace    time.Duration
	command  *exec.Cmd
	stopping atomic.Bool   // its end was requested
	exited   chan struct{} // closed by wait after the process has ended
	err      error         // exit error; read after exited only
}

// Start starts a program, without a wait for its readiness.
func Start(cfg Config) (*Child, error) {
	if cfg.Path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		cfg.Path = self
	}
	name := cmp.Or(cfg.Name, filepath.Base(cfg.Path))
	output, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	logFrom, err := output.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find the end of the log of %s: %w", name, err), output.Close())
	}
	command := exec.Command(cfg.Path, cfg.Args...)
	command.Dir, command.Env = cfg.Dir, cfg.Env
	if !cfg.Bare {
		command.Env = append(os.Environ(), cfg.Env...)
	}
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = childAttributes()

	c := &Child{
		name: name, log: cfg.Log, logFrom: logFrom, grace: cmp.Or(cfg.Grace, defaultGrace), command: command, exited: make(chan struct{}),
	}
	started := make(chan error)
	go func() {
		defer output.Close()
		c.wait(started)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	return c, nil
}

// wait starts the process and waits for its end on one thread. The kernel sends the parent-death
// signal when the thread that started the child ends (golang.org/issue/27505).
func (c *Child) wait(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.command.Start()
	started <- err
	if err != nil {
		return
	}
	c.err = c.command.Wait()
	close(c.exited)
}

// Stop sends SIGTERM, kills the process after its grace, and returns after its end. The error says
// that the process had ended before, was killed, or ended with another code than 0. Stop does
// nothing on nil.
func (c *Child) Stop() error {
	if c == nil {
		return nil
	}
	c.stopping.Store(true)
	if err := c.Signal(syscall.SIGTERM); err != nil {
		<-c.exited
		return errors.Join(err, c.err)
	}
	if err := c.Wait(c.grace); err != nil {
		return err
	}
	if c.err != nil {
		return fmt.Errorf("%s ended after SIGTERM: %w", c.name, c.err)
	}
	return nil
}

// Wait waits for the end of the process. After the timeout it kills the process and returns an
// error.
func (c *Child) Wait(timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-c.exited:
		return nil
	case <-timer.C:
		c.Kill()
		return fmt.Errorf("%s did not end within %v", c.name, timeout)
	}
}

// Kill kills the process and returns when it has ended. It does nothing on nil.
func (c *Child) Kill() {
	if c == nil {
		return
	}
	c.stopping.Store(true)
	_ = c.command.Process.Kill() // an error means that the process has ended
	<-c.exited
}

// Signal sends a signal. After the end of the process the error is os.ErrProcessDone.
func (c *Child) Signal(signal syscall.Signal) error {
	if err := c.command.Process.Signal(signal); err != nil {
		return fmt.Errorf("send %s to %s: %w", signal, c.name, err)
	}
	return nil
}

// Exited is closed after the process has ended.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// PID returns the id of the process.
func (c *Child) PID() int { return c.command.Process.Pid }

// ExitCode returns the exit code, -1 after a signal. It may be called once Exited is closed.
func (c *Child) ExitCode() int { return c.command.ProcessState.ExitCode() }

// Stopping reports whether Stop or Kill was called.
func (c *Child) Stopping() bool { return c.stopping.Load() }

// Gone reports whether the process has ended.
func (c *Child) Gone() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// Death describes the end of a child, with its last log lines. It may be called once Exited is
// closed.
func (c *Child) Death() error {
	cause := "exit status 0"
	if c.err != nil {
		cause = c.err.Error()
	}
	return fmt.Errorf("%s (pid %d) died: %s; the end of its log %s:\n%s", c.name, c.PID(), cause, c.log, c.lastLines())
}

// While returns a context that ends when stop is called or the process ends. An early end is its
// cause.
func (c *Child) While(ctx context.Context) (running context.Context, stop func()) {
	running, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-running.Done():
		case <-c.exited:
			cancel(c.Death())
		}
	}()
	return running, func() { cancel(nil) }
}

const (
	logTailBytes = 16 << 10
	logTailLines = 8
	longestLine  = 600
)

// lastLines returns the last lines of the log, indented and cut, or why they cannot be read.
func (c *Child) lastLines() string {
	tail, err := c.LogTail()
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	lines = lines[max(0, len(lines)-logTailLines):]
	for i, line := range lines {
		if len(line) > longestLine {
			line = line[:longestLine] + " …"
		}
		lines[i] = "  " + line
	}
	return strings.Join(lines, "\n")
}

// LogTail returns the end of its own output in the log.
func (c *Child) LogTail() (string, error) {
	file, err := os.Open(c.log)
	if err != nil {
		return "", fmt.Errorf("read log of %s: %w", c.name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("read log of %s: %w", c.name, err)
	}
	start := max(c.logFrom, info.Size()-logTailBytes)
	tail := make([]byte, info.Size()-start)
	n, err := file.ReadAt(tail, start)
	if n == 0 && err != nil {
		return "", fmt.Errorf("read log of %s: %w", c.name, err)
	}
	return string(tail[:n]), nil
}
