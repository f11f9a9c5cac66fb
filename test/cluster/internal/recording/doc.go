// Package recording has what a client of kube-apiserver can observe while a cluster goes through
// the steps of a scenario, and compares two recordings of the same scenario.
//
// A [Tracker] takes in objects as they change, and keeps each change of a field with the time since
// its step began. Names, UIDs and addresses that differ in each run become roles, as "web-1".
// [Compare] lines up the changes of two recordings and lists every difference; a list of allowances
// says which differences are intended, each with its reason.
//
// The package is pure: it has no clock and no client. Package recorder feeds it from
// kube-apiserver.
package recording
