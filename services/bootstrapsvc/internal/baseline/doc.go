// Package baseline decides what the four system namespaces and the Service default/kubernetes lack, and says what is wrong with
// the default ServiceCIDR.
//
// It promises that a plan, once applied, leaves nothing to write; that what it was given is never changed; and that
// nothing in use is taken away: a namespace that goes away is reported, not fought over, and a ClusterIP other than the
// wanted one is reported, because an apiserver lets nobody change it and deleting the Service would cut off every pod.
//
// Namespaces are made as kube-apiserver makes them (pkg/controlplane/controller/systemnamespaces): bare. The Service is
// made as pkg/controlplane/controller/kubernetesservice makes it; unlike there, its drift is repaired for as long as
// the process runs, not only at creation. Labels and annotations of others stay. Its IP families stay as found unless both
// are asked for; they are widened then, and never narrowed, because that would release an address somebody may use.
//
// The package does no I/O and knows no clock.
package baseline
