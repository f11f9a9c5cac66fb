// Package faultproxy disturbs the connections of the program under test. KubeProxy stands before a
// kube-apiserver and knows its requests: it delays, refuses or holds the ones that a test selects.
// Relay stands before any TCP server and knows bytes only. Both listen on the loopback interface
// and end with the test. All functions may be called while connections are open, from any
// goroutine.
package faultproxy
