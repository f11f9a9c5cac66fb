// Package access tests every method of every server with every kind of caller, against the shipped
// roles on a real kube-apiserver.
//
// What is expected stands in expected_test.go and shares nothing with the servers: neither the
// access rules of the .proto files nor the code that reads them.
package access
