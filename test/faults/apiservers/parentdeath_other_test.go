//go:build !linux

package apiservers

import "syscall"

// Only Linux can kill a child when its parent is killed.
func dyingWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
