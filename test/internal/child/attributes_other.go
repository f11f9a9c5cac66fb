//go:build !linux

package child

import "syscall"

// attributes cannot bind the child to its parent: only Linux has a parent death signal.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
