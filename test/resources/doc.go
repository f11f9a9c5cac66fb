// Package resources measures what the services need when clients, memory or processors misbehave,
// and for how long they need it: `make resources`.
//
// Each service is a process of its own, and the kernel's counters of it are the measure: resident
// memory, processor time and open descriptors. Goroutines come from the metrics of the process.
//
// The tests and what they promise:
//
//   - Churn: a thousand streams of each kind that end in three ways leave no goroutine, no
//     descriptor and no memory behind.
//   - Herd: agents whose connections all close at the same moment, or whose only replica restarts,
//     are renewed within one interval of their beats, and no node is marked.
//   - Identities: 100,000 holders take a bounded memory, and a flood of further ones is
//     refused and expires no other holder. Callers of 100,000 identities fill the caches of
//     tokens, rights and certificates up to their bounds, and displace no answer about callers
//     that call all the time, whose latency stays.
//   - SlowReaders: clients that read nothing, or a hundred bytes a second, delay no other client
//     and take a bounded memory. Once they read, they get the newest state or an error. Beside
//     watches of slices that are not read, slices are written as fast as without them.
//   - MemoryLimit: with a GOMEMLIMIT of 1.2 times what leasesvc needs, it works.
//   - ScarceProcessor: leasesvc that runs a tenth of the time expires no session of an agent. It
//     notices that it is late, and its deadlines move while it does not run for long.
//   - Outage: after etcd, or kube-apiserver, was away, all replicas and the gateway are healthy,
//     and changes are applied, within ten seconds.
//
// The short form, in every `go test`, has a real etcd, a simulated kube-apiserver without objects,
// and small numbers. It checks what does not depend on the speed of the machine. The long form
// checks all bounds, and wants a machine without other work.
package resources
