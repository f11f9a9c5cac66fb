// Package faultproxy disturbs the connections of the program under test. KubeProxy forwards
// requests to a kube-apiserver, and delays, refuses or holds those that a test selects. Relay
// forwards the bytes of connections to any TCP server. Both listen on the loopback interface and
// end with the test. All functions may be called while connections are open, from any goroutine.
package faultproxy
