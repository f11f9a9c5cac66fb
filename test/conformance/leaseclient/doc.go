// Package leaseclient tests leasesvc beside upstream's own lease client,
// k8s.io/component-helpers/apimachinery/lease, as kubelets use it, on one kube-apiserver: each
// takes over what the other wrote, and both together do no harm.
//
// When both write the Lease of one Node, each renews what the other left: no write is lost, because
// every PUT is guarded by the resourceVersion, renewTime only grows, and the owner and the holder
// stay. That is a state of transition and not one to stay in: it costs both a second read and write
// now and then, and a Node whose kubelet is dead while something else beats for it looks alive.
package leaseclient
