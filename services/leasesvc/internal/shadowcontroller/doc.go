// Package shadowcontroller runs node-health and taint-eviction in dry run: their controllers judge
// and plan as always with a Writer that refuses, and this package compares Nodes and Pods with what
// was planned.
//
// Nothing is concluded from the cache alone: each object that seems to differ is read again.
// Nothing is concluded while node-health is uncertain.
package shadowcontroller
