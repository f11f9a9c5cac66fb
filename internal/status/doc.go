// Package status serves trivet.status.v1.StatusService: what a process says about itself, in the same words for every service.
//
// Promise: an answer is made from memory alone, whatever the state of etcd, the kube-apiserver or the term, and its lists are
// always in the same order. Text that came from elsewhere, such as the errors of loops, is made valid UTF-8, because one bad
// byte would make the whole answer unsendable just when it is needed.
//
// The parts of an answer are read one after the other, each consistent in itself; they are not one snapshot. This is the only
// package below internal/ that knows a generated API.
package status
