//go:build !linux

package childprocess

import "syscall"

// childAttributes puts a child into a process group of its own, so that a Ctrl-C in the terminal
// reaches this process alone. Only Linux can kill it when this process is killed; elsewhere such a
// child has to be found by hand.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
