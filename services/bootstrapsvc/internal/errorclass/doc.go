// Package errorclass tells, of an error of a Kubernetes client, what its caller has to know: whether planning again would help, or
// waiting, or neither, because what was asked for is forbidden or invalid and stays so. The error itself stays in the chain.
package errorclass
