// Package oracle checks the rules of allocation for addresses and ports, from the changes in etcd
// in order of revision.
//
// The rules apply to every writer: a subject in use is not freed, a subject that is not allocated
// is not used, and two Services never use the same subject. Damage that a test injects is marked as
// injected and violates no rule. A later allocation that the injected damage makes possible
// violates no rule either.
//
// A subject that is allocated and not in use breaks no rule, but is a leak if it stays so. Unuses
// returns all such times of a subject, and their causes.
//
// The package is independent of Kubernetes and etcd, and has no I/O. An Oracle is not safe for
// concurrent use.
package oracle
