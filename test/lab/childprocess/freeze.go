package childprocess

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// freezeTimeout bounds the time until all threads of a process are stopped.
const freezeTimeout = 10 * time.Second

// Freeze suspends the process until Thaw, and returns when no thread of it runs. The kernel still
// accepts connections on its ports, without a response.
func (c *Child) Freeze() error {
	if err := c.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// The signal stops one thread after another, and answers go on meanwhile.
	for deadline := time.Now().Add(freezeTimeout); c.isRunning(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("freeze %s: its threads still run after %v", c.name, freezeTimeout)
		}
	}
	return nil
}

// Thaw resumes a frozen process.
func (c *Child) Thaw() error { return c.Signal(syscall.SIGCONT) }

// isRunning says whether a thread of the process is not stopped, as far as /proc tells.
func (c *Child) isRunning() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.PID()))
	return slices.ContainsFunc(threads, func(thread string) bool {
		text, err := os.ReadFile(thread)
		_, state, found := strings.Cut(string(text), ") ")
		return err == nil && found && !strings.HasPrefix(state, "T")
	})
}
