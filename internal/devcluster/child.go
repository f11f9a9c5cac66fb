package devcluster

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

// child is one running process, from its start to its reaping.
type child struct {
	name    string
	log     string // path of its combined output
	logFrom int64  // where in that file its own output begins
	process *os.Process
	asked   atomic.Bool   // its end was asked for
	exited  chan struct{} // closed by reap once the process is gone
	err     error         // how it went; read after exited only
}

// startChild runs a program in dir and appends its output to <dir>/<name>.log.
func startChild(name, path, dir string, args []string) (*child, error) {
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

	c := &child{name: name, log: log, logFrom: logFrom, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer output.Close()
		c.reap(command, started)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return c, nil
}

// reap starts the process and waits for its end on one thread: were the
// thread to end or to be reused and retired before the child, the child's
// parent-death signal would kill it for no reason (golang.org/issue/27505).
func (c *child) reap(command *exec.Cmd, started chan<- error) {
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

// stop asks the process to end, waits for grace at most, then kills it. It
// returns when the process is gone; a second call returns at once.
func (c *child) stop(grace time.Duration) {
	c.asked.Store(true)
	// An error of Signal or Kill means that the process is gone already.
	_ = c.process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
		return
	case <-time.After(grace):
	}
	c.kill()
}

// kill ends the process at once and returns when it is gone.
func (c *child) kill() {
	c.asked.Store(true)
	_ = c.process.Kill()
	<-c.exited
}

func (c *child) gone() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// death tells how an exited child went, in its own last words.
func (c *child) death() error {
	cause := "exit status 0"
	if c.err != nil {
		cause = c.err.Error()
	}
	return fmt.Errorf("%s (pid %d) died: %s; the end of its log:\n%s", c.name, c.process.Pid, cause, c.lastWords())
}

const (
	lastWordsBytes = 16 << 10
	lastWordsLines = 8
	longestLine    = 600
)

// lastWords returns the last lines of the log, indented, each cut to a
// readable length; or why there are none.
func (c *child) lastWords() string {
	tail, err := c.logTail()
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	lines = lines[max(0, len(lines)-lastWordsLines):]
	for i, line := range lines {
		if len(line) > longestLine {
			line = line[:longestLine] + " …"
		}
		lines[i] = "  " + line
	}
	return strings.Join(lines, "\n")
}

func (c *child) logTail() (string, error) {
	file, err := os.Open(c.log)
	if err != nil {
		return "", fmt.Errorf("read log of %s: %w", c.name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("read log of %s: %w", c.name, err)
	}
	start := max(c.logFrom, info.Size()-lastWordsBytes)
	tail := make([]byte, info.Size()-start)
	n, err := file.ReadAt(tail, start)
	if n == 0 && err != nil {
		return "", fmt.Errorf("read log of %s: %w", c.name, err)
	}
	return string(tail[:n]), nil
}
