package childprocess

import "syscall"

// childAttributes puts a child into its own process group, so that Ctrl-C in a terminal reaches
// only this process, which stops its children in order. It also lets the kernel kill the child when
// this process dies. The kernel does so when the *thread* that started the child ends, so
// Child.wait keeps its thread.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
