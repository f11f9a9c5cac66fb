package devcluster

import "syscall"

// childAttributes puts a child into a process group of its own, so that a
// Ctrl-C in the terminal reaches this process alone and it can stop its
// children in order; and lets the kernel kill the child when we die without
// that chance. The kernel sends that signal when the *thread* that started
// the child exits, which is why child.reap keeps its thread.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
