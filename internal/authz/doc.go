// Package authz decides whether a caller may do what it asks for, by Kubernetes' own rules.
//
// Access is a verb on a resource of the API group trivet.dev, which exists for RBAC only. Each
// decision is a SubjectAccessReview at the kube-apiserver, and is kept for ten seconds. While no
// kube-apiserver answers, an allowed read stays allowed for five minutes; nothing else is allowed.
// Replicas of Trivet may read for themselves by their certificates, so that the status of a cluster
// is known while its kube-apiserver is away.
//
// Holders of leases are bound to identities without a review: see services/leasesvc/internal/class.
package authz
