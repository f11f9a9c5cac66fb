// Package nodecluster runs a Kubernetes cluster with real nodes on one Linux machine: kubelets,
// containerd and runc, a control plane of static Pods, and Trivet's servers beside it.
//
// Each node is a process tree with namespaces of its own, and one process, its pid 1, holds it
// together: its end is a power cut. A node sees a root directory of its own, so all paths in it are
// those of a real machine. The nodes' networks are joined by a bridge in a network namespace of its
// own, the hub. No address and no route of the machine changes; [Cluster.DialContext] reaches
// addresses of the cluster, and relays on 127.0.0.1 reach kube-apiserver and the page.
//
// Everything about a cluster is in one directory, so that another process can open it, break it and
// end it, also after a crash of the process that started it. The package needs root.
//
// A program that starts clusters calls [RunChild] first of all in its main function, because a
// node's pid 1 and the relay are the program's own executable.
package nodecluster
