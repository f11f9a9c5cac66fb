// Package robustness runs all services of Trivet, disturbs them, and judges the record of what
// happened. No test of this package checks a result at one moment: oracles judge the whole history.
//
// # Promise
//
// Under each fault of the table, alone or together with another one, no service breaks a rule of
// package oracle, beyond the time that the rule allows.
//
// # Parts
//
//   - world: an etcd of three members, two kube-apiservers, two or three replicas of each service
//     and a gateway, each a process; nodes with an agent, which renews their Leases while its beats
//     are not acknowledged, nodes whose kubelet renews its Lease, and traffic. Each replica reaches
//     each member of etcd by a proxy of its own.
//   - slot: the proxies on all links of one replica: to etcd and from its callers by bytes, to
//     kube-apiserver by requests. All listen on 127.0.0.1. The gateway, the agents and the other
//     replicas reach a replica only through its proxy.
//   - recorder: one watch of all keys of etcd, over a connection without a proxy. Trivet's keys and
//     Kubernetes' objects share one order, that of etcd's revisions. The proxies add which process
//     changed an object, and when the request was sent. The test adds which nodes live, which
//     processes and kube-apiservers run, what the gateway answers, and what faults there were.
//   - package schedule: the table of faults; from a seed to a schedule; the shortest schedule that
//     still fails.
//   - package oracle: from a history to violations and measured times. Pure.
//   - package history: the record, and what part of a lag no fault excuses. Pure.
//   - package report: the table of faults and services. Pure.
//
// # From a seed to a run
//
// A seed fixes the faults, the service that has each one, their times, the profile of the traffic
// and its changes. The replica is the one with the most shards of the service at that moment. The
// interleaving of the processes is not reproducible. A step is six seconds of undisturbed traffic,
// the crash of one node of each kind, the faults, and six to twenty seconds to recover. A rule with
// a bound is measured from the start of a fault, or from its end if the services can do nothing
// before it.
//
// /proc has how long each thread of the test, the services, kube-apiserver and etcd could run and
// waited for a processor. The longest of these waits in each quarter of a second is a stall. A
// breach that is none without the stalls is undecided: it is neither a violation nor hidden.
//
// # Links and measurements
//
// The links between the services, from agents and from callers have TLS: one authority issues their
// certificates, and faults replace them. The links to etcd have the certificates of the control
// plane, which stay, and those to kube-apiserver have no TLS. A connection is asked to go after a
// minute, so that handshakes never end. What a relay delays, it delivers in order, as TCP does:
// loss shows as late bytes.
//
// A caller calls each service through the gateway, with Trivet's retries, every second time over a
// new connection. Rule call judges each of its calls. Some faults measure what they left behind:
// the memory, goroutines and files of a process, the records of an audit log, the calls that an
// expired certificate should refuse. Rule level judges that, unless another fault of the step
// concerns the same service.
//
// The clock of a Go process cannot be stepped from outside. So F12 steps the clocks of kubelets
// here, and those of services in tests of one process: services/leasesvc/internal/monotonic,
// nodehealth (SteppedClocks) and writeback (SteppedClocks).
//
// # What counts
//
// A step counts only if the traffic before it was above a floor. A run counts only if all services
// worked before the first step, each fault was injected, and the record is complete. A process
// that ends by itself or with another code than 0, and a crash, break rule level. A run that does
// not count is listed as discarded. All runs of a commit are on the page, also those whose seed ran
// again.
//
// Commands:
//
//	go test ./test/robustness                          the short form: most faults once, two at a time
//	make robustness                                    each fault once, in one service each
//	make robustness SEEDS=20 EACH=4                    twenty schedules of four faults
//	make robustness FAULTS="F1,leader frozen" PAIRS=1  pairs of the named faults
//	make robustness FIRST=7 SHRINK=8                   seed 7, and its shortest schedule that fails
//	make robustness FULL=1 PROFILE=rollouts            the full world, with one profile of traffic
//	make robustness-restore                            a restore of etcd from a snapshot
//
// The short form leaves out the faults that are Long in the table, because they take long or
// differ from another one in their direction or extent only: slow watch clients, an etcd link that
// is cut in both directions or twice, all of etcd stopped, calls that are slow without loss, cut
// for long, cut in turn or half of them, loss between a service and kube-apiserver, and kubelet
// clocks that go back. Runs with seeds have all faults.
//
// Each run is added to a file, and docs/robustness.md is written from all runs of one commit. So
// twenty seeds of each fault and 200 pairs are pieces of an hour, also side by side:
//
//	make robustness FIRST=1 SEEDS=5                    five of the twenty
//	make robustness FIRST=101 SEEDS=4 EACH=20 PAIRS=1  eighty of the pairs
//
// Not injected: damage of allocations other than freed addresses (test/faults/damage injects it),
// and thousands of agents at once (test/resources). The services have all rights in the cluster,
// and their callers all rights in the services: the reviews of calls are not disturbed.
package robustness
