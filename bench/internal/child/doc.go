// Package child runs each measured program as a separate process, so that the kernel reports its
// CPU time and memory.
//
// A child dies with its parent. It is not restarted: a program that exits early fails the
// measurement.
package child
