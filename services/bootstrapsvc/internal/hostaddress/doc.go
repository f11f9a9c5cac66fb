// Package hostaddress finds the address under which pods reach this machine's kube-apiserver.
//
// [Choose] prefers the address in the kube-apiserver's URL if other machines can reach it.
// Otherwise it takes the interfaces that are up, those of a default route first. It never returns
// an address that other machines cannot reach, because every pod would then connect to itself.
//
// apimachinery's ChooseHostInterface (pkg/util/net/interface.go) is not used: it ignores interfaces
// without a default route wherever one exists, and cannot be restricted to one address family.
package hostaddress
