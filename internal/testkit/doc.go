// Package testkit gives tests a real control plane and gRPC servers as they
// run in production.
//
// A test binary that uses it has one TestMain:
//
//	func TestMain(m *testing.M) { testkit.Main(m) }
//
// The first test that asks for the cluster starts it (some three seconds);
// all tests of the binary share it, so each works in a Namespace of its own
// and takes names for cluster-wide objects from its namespace's name. Main
// stops the cluster and fails the run if a goroutine is left.
//
// Only tests import this package. Nothing here skips a test: where the
// binaries of the control plane are missing, the test fails and says so.
package testkit
