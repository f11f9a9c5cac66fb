// Package childprocess runs programs as children of this process, each in a process group of its
// own. The kernel kills a child when this process ends.
package childprocess

import (
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

// Child is one process, from its start until it was waited for. Its methods are safe for concurrent
// use.
type Child struct {
	name     string
	log      string // path of its combined output
	logFrom  int64  // offset of its own output in that file
	process  *os.Process
	stopping atomic.Bool   // its end was requested
	exited   chan struct{} // closed by wait after the process has ended
	err      error         // exit error; read after exited only
}

// Start runs the program at path in dir, with an environment of HOME and TMPDIR only. It appends
// the output to <dir>/<name>.log.
func Start(name, path, dir string, args []string) (*Child, error) {
	log := filepath.Join(dir, name+".log")
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	logFrom, err := output.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find the end of the log of %s: %w", name, err), output.Close())
	}
	command := exec.Command(path, args...)
	command.Dir = dir
	command.Env = []string{"HOME=" + dir, "TMPDIR=" + dir}
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = childAttributes()

	c := &Child{name: name, log: log, logFrom: logFrom, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer output.Close()
		c.wait(command, started)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return c, nil
}

// wait starts the process and waits for its end on one thread. The kernel sends the parent-death
// signal when the thread that started the child ends (golang.org/issue/27505).
func (c *Child) wait(command *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := command.Start()
	c.process = command.Process
	started <- err
	if err != nil {
		return
	}
	c.err = command.Wait()
	close(c.exited)
}

// Stop sends SIGTERM, waits for grace at most, then kills the process. It returns when the process
// has ended; a second call returns at once.
func (c *Child) Stop(grace time.Duration) {
	c.stopping.Store(true)
	// An error of Signal or Kill means that the process has ended.
	_ = c.process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
		return
	case <-time.After(grace):
	}
	c.Kill()
}

// Kill kills the process and returns when it has ended.
func (c *Child) Kill() {
	c.stopping.Store(true)
	_ = c.process.Kill()
	<-c.exited
}

// Exited is closed after the process has ended.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// PID returns the id of the process.
func (c *Child) PID() int { return c.process.Pid }

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

// Death describes the end of a child, with its last log lines.
func (c *Child) Death() error {
	cause := "exit status 0"
	if c.err != nil {
		cause = c.err.Error()
	}
	return fmt.Errorf("%s (pid %d) died: %s; the end of its log:\n%s", c.name, c.process.Pid, cause, c.lastLines())
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
