package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopTimeout is how long a child may take to end by itself; leasesvc hands over its shards
// meanwhile.
const stopTimeout = 30 * time.Second

// Config is which program to run, and how.
type Config struct {
	// Path of the program.
	Path string
	// Args are its arguments, Env what its environment has beside this process's own.
	Args, Env []string
	// Log is the path of the file that gets all it prints; a file that is there is written on.
	Log string
}

// Child is one program that was started. Its methods may be called from any goroutine.
type Child struct {
	command *exec.Cmd
	log     string
	ended   chan struct{} // closed once the process is gone
	err     error         // how it went; read after ended only
}

// Start starts a program and does not wait for it to be of use.
func Start(cfg Config) (*Child, error) {
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", cfg.Path, err)
	}
	c := &Child{command: exec.Command(cfg.Path, cfg.Args...), log: cfg.Log, ended: make(chan struct{})}
	c.command.Env = append(os.Environ(), cfg.Env...)
	c.command.Stdout, c.command.Stderr = log, log
	c.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", cfg.Path, err), log.Close())
	}
	go func() {
		c.err = errors.Join(c.command.Wait(), log.Close())
		close(c.ended)
	}()
	return c, nil
}

// PID is the number of the process.
func (c *Child) PID() int { return c.command.Process.Pid }

// Ended is closed when the process is gone.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Err says how the process ended, and where its log is. It may be called once Ended is closed.
func (c *Child) Err() error {
	return fmt.Errorf("%s ended: %w; see %s", c.command.Path, errors.Join(c.err, errEnded), c.log)
}

var errEnded = errors.New("it should have gone on")

// Stop asks the process to end, kills one that does not, and returns when it is gone. A second
// call, and one on nil, does nothing.
func (c *Child) Stop() {
	if c == nil {
		return
	}
	// The process may be gone already; then there is nothing to signal.
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(stopTimeout):
		c.Kill()
	}
}

// Kill ends the process as a crash does and returns when it is gone.
func (c *Child) Kill() {
	_ = c.command.Process.Kill()
	<-c.ended
}

// CPU is the CPU time that the process has used so far, user and system.
func (c *Child) CPU() (time.Duration, error) { return CPU(c.PID()) }

// Spent runs work and returns the CPU time that the process used meanwhile.
func (c *Child) Spent(work func() error) (time.Duration, error) { return Spent(work, c.PID()) }

// Resident is the process's resident memory in bytes.
func (c *Child) Resident() (int64, error) { return Resident(c.PID()) }
