package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopTimeout bounds a graceful exit. leasesvc hands over its shards in this time.
const stopTimeout = 30 * time.Second

// Config is the configuration of a child.
type Config struct {
	// Path is the path of the program.
	Path string
	// Args are its arguments. Env is added to this process's environment.
	Args, Env []string
	// Log is the path of a file for its output. An existing file is appended to.
	Log string
}

// Child is a started program. Its methods may be called from any goroutine.
type Child struct {
	command *exec.Cmd
	log     string
	ended   chan struct{} // closed after the exit
	err     error         // the result of the process; read only after ended is closed
}

// Start starts a program, without a wait for its readiness.
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

// PID returns the id of the process.
func (c *Child) PID() int { return c.command.Process.Pid }

// Ended is closed after the exit of the process.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Err describes the exit of the process and the path of its log. It may be called once Ended is
// closed.
func (c *Child) Err() error {
	return fmt.Errorf("%s ended: %w; see %s", c.command.Path, errors.Join(c.err, errEnded), c.log)
}

var errEnded = errors.New("it should have gone on")

// While returns a context that ends when stop is called or the process exits early. An early exit
// is its cause.
func (c *Child) While(ctx context.Context) (running context.Context, stop func()) {
	running, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-running.Done():
		case <-c.Ended():
			cancel(c.Err())
		}
	}()
	return running, func() { cancel(nil) }
}

// Stop sends SIGTERM, kills the process after stopTimeout, and returns after its exit. It does
// nothing on nil and after an exit.
func (c *Child) Stop() {
	if c == nil {
		return
	}
	// The process may have exited. Then there is nothing to signal.
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(stopTimeout):
		c.Kill()
	}
}

// Kill sends SIGKILL and returns after the exit.
func (c *Child) Kill() {
	_ = c.command.Process.Kill()
	<-c.ended
}

// CPU returns the CPU time of the process so far, user and system.
func (c *Child) CPU() (time.Duration, error) { return CPU(c.PID()) }

// Spent runs work and returns the CPU time of the process during it.
func (c *Child) Spent(work func() error) (time.Duration, error) { return Spent(work, c.PID()) }

// Peak returns the largest resident memory that the process had so far, in bytes.
func (c *Child) Peak() (int64, error) { return Peak(c.PID()) }

// Resident returns the resident memory of the process in bytes.
func (c *Child) Resident() (int64, error) { return Resident(c.PID()) }
