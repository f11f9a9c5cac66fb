// Package alerts proves the rules of deploy/monitoring on running servers. A real Prometheus
// scrapes them while one fault after the other is injected and undone.
//
// # Promise
//
// The alert of each fault fires in it, no other one does except those that the table of faults
// names with a reason, and all of them end after the fault. In the quiet entries of the table, such
// as a rolling update, none fires.
//
// # Parts
//
//   - world: etcd, two kube-apiservers, two replicas of each service and a gateway, each a process
//     with certificates and the shipped roles; twelve nodes with an agent, Services and Pods.
//   - replica: the process, its links to etcd, to kube-apiserver and from agents, and its
//     certificate. The links are proxies of package faultproxy.
//   - prometheus: the server, with the rules of deploy/monitoring. Its ranges and `for` are shorter
//     by one factor, which tools/prometheus/scale applies to the parsed expressions. Thresholds are
//     the shipped ones.
//   - faults: the table.
//
// Prometheus evaluates each second. The test reads all evaluations of a phase from its storage, so
// no alert is missed between two questions.
//
// Commands:
//
//	make test-alerts-live                         all faults; writes the table to docs/alerts.md
//	make test-alerts-live FAULTS=TrivetNoLeader   one of them
//	make dashboards                               some of them; draws the dashboards at the end
//
// A panic needs a hook that the servers do not have: the test binary, which also is the server,
// panics in a handler for requests with a header of the test.
package alerts
