package simtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// ChildConfig is a program under test in a process of its own. Name and Path are required.
type ChildConfig struct {
	Name, Path string
	Args       []string
	// Env is added to the environment of this process.
	Env []string
}

// Child is a running program. It is killed when the test ends.
type Child struct {
	t       *testing.T
	name    string
	command *exec.Cmd
	log     *os.File
	ended   chan struct{}
	end     sync.Once
}

// stopTimeout is how long a program may take to end on its own after SIGTERM.
const stopTimeout = 30 * time.Second

// StartChild starts a program. It must run until Stop or Kill is called or the test ends. If the
// test fails, the end of the program's output is in the log of the test.
func StartChild(t *testing.T, cfg ChildConfig) *Child {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), cfg.Name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(cfg.Path, cfg.Args...)
	command.Env = append(os.Environ(), cfg.Env...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	c := &Child{t: t, name: cfg.Name, command: command, log: log, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		_ = command.Wait() // Stop reads the exit code
	}()
	t.Cleanup(c.Kill)
	return c
}

// Name is the name of the program.
func (c *Child) Name() string { return c.name }

// Kill ends the program at once. Stop and Kill do nothing after the first call of either.
func (c *Child) Kill() {
	c.end.Do(func() {
		c.signal(os.Kill)
		<-c.ended
		c.showLog()
	})
}

// Stop asks the program to end, and fails the test if it does not end with success.
func (c *Child) Stop() {
	c.end.Do(func() {
		c.signal(syscall.SIGTERM)
		select {
		case <-c.ended:
			if code := c.command.ProcessState.ExitCode(); code != 0 {
				c.t.Errorf("%s has ended with code %d", c.name, code)
			}
		case <-time.After(stopTimeout):
			c.t.Errorf("%s does not end within %v", c.name, stopTimeout)
			c.signal(os.Kill)
			<-c.ended
		}
		c.showLog()
	})
}

func (c *Child) signal(signal os.Signal) {
	if errors.Is(c.command.Process.Signal(signal), os.ErrProcessDone) {
		c.t.Errorf("%s has ended by itself", c.name)
	}
}

// showLog puts the end of the output into the log of a failed test.
func (c *Child) showLog() {
	const shown = 8 << 10
	if content, err := os.ReadFile(c.log.Name()); c.t.Failed() && err == nil {
		c.t.Logf("%s said:\n%s", c.name, content[max(0, len(content)-shown):])
	}
	_ = c.log.Close()
}
