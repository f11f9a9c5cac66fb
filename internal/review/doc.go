// Package review keeps the answers of a kube-apiserver about tokens and access.
//
// Packages authn and authz ask the questions; a [Cache] decides when a question is asked again. An
// answer is fresh for [Fresh]. A call finds a fresh answer in memory and sends nothing. Shortly
// before an answer ages, a call that uses it starts the next review in the background, so that a
// slow kube-apiserver delays nothing. Concurrent calls share one review.
//
// An error is no answer and is never kept. While the kube-apiserver is away, a caller that may use
// a stale answer gets a positive one for up to [Stale]. A refusal is never turned into a
// permission: it replaces the positive answer, and a stale refusal is not used.
//
// Memory is bounded: entries, reviews in flight and reviews that wait. Refusals are kept apart, so
// that many invalid tokens cannot displace the answers about valid ones.
package review
