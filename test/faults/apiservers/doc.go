// Package apiservers proves by experiment that the endpoints of default/kubernetes follow the kube-apiservers: who comes is
// in, who stops, is killed or hangs is out in time, and whoever is well stays in, whatever happens to the others.
//
// Two or three real kube-apiservers share a real etcd, each on a machine of its own as far as anybody can tell: with an
// address of its own and a bootstrapsvc beside it, a process of its own that reaches Kubernetes through that kube-apiserver
// alone. Faults strike either of the two, also those of the leader. What is published is read from another kube-apiserver,
// which no fault strikes.
//
//	go test ./test/faults/apiservers                         every fault once: two minutes
//	go test ./test/faults/apiservers -run Histories -v \
//	        -args -apiservers.histories=10 -apiservers.each=20   long random histories, reproduced by their seeds
//
// What it cannot show: machines, and networks between them. All listen on loopback; the addresses that are published lead
// nowhere, and nobody but the sidecars' own probes says that a server is well.
package apiservers
