package abuse

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// priority is the niceness of processes that are measured, and of the attacker beside them.
const priority = -19

// takePlace moves the process to its processors, and raises its priority if it may. The Go runtime
// counts the processors when a program starts, so the program starts again.
func takePlace(where place) error {
	switch where {
	case anywhere:
		return nil
	case leastImportant:
		return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19)
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return fmt.Errorf("read the processors: %w", err)
	}
	var own unix.CPUSet
	measured := max(1, allowed.Count()/2)
	seen := 0
	for processor := 0; seen < allowed.Count(); processor++ {
		if !allowed.IsSet(processor) {
			continue
		}
		if (seen < measured) == (where == measuredProcessors) || allowed.Count() == 1 {
			own.Set(processor)
		}
		seen++
	}
	if err := unix.SchedSetaffinity(0, &own); err != nil {
		return fmt.Errorf("take the processors: %w", err)
	}
	raisePriority()
	if err := os.Setenv(placeVariable, string(anywhere)); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return unix.Exec(program, os.Args, os.Environ()) // keeps the processors of this thread, and the priority
}

// raisePriority does what the user may. The kernel compares the niceness of processes of one
// session only, so the process begins a session, whose priority is raised too.
func raisePriority() {
	_, _ = unix.Setsid()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, priority)
	_ = os.WriteFile("/proc/self/autogroup", []byte(fmt.Sprint(priority)), 0)
}
