// Package advertise decides under which address pods reach this machine's kube-apiserver, when nobody said so.
//
// The apiserver's own URL wins if it names an address that other machines can reach. Otherwise the machine's
// interfaces decide: those of the default route first, as kube-apiserver chooses its own (apimachinery's
// pkg/util/net/interface.go), then the others in their order. An address that other machines cannot reach is never
// chosen: publishing it would send every pod to itself.
//
// The package does no I/O; package hostnet takes the snapshot of the interfaces.
package advertise
