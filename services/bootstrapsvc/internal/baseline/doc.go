// Package baseline plans how the four system namespaces and the Service default/kubernetes must
// change, and reports what is wrong with the default ServiceCIDR.
//
// An applied plan leaves nothing to write, and inputs are never changed. A plan removes nothing
// that is in use: a node port or a load balancer of the Service goes only with an approved plan. A
// namespace that is being deleted is reported. So is a ClusterIP other than the wanted one: it is
// immutable, and deleting the Service would cut off every pod.
//
// Namespaces are created without labels, as kube-apiserver does
// (pkg/controlplane/controller/systemnamespaces). The Service has the shape that
// pkg/controlplane/controller/kubernetesservice gives it. Unlike there, its drift is repaired for
// as long as the process runs, not only at its creation. Foreign labels and annotations stay. Its
// IP families stay unless both are wanted. Then the second one is added, and it is never removed,
// because its address may be in use.
//
// [Change] is one step of a plan, here and in package apiservers.
package baseline
