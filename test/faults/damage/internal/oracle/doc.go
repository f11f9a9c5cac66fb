// Package custody judges what became of addresses and ports, from the changes that etcd saw, in the order in which it saw them.
//
// The rules are those that nobody may break, whoever writes: what a Service uses is not freed; what is not allocated is not
// taken into use; and two Services never use the same. Damage that a test does on purpose is marked as planted and breaks no
// rule, nor does it that the allocator gives away what such damage has freed.
//
// It knows neither Kubernetes nor etcd, and decides from its parameters alone. A Judge is not safe for concurrent use.
package oracle
