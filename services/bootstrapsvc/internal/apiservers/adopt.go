package apiservers

import (
	"fmt"
	"net/netip"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

const (
	// KeyUnleased: a key that tells of an apiserver has no lease, so it would stay when the apiserver dies, as after some
	// restores. The apiserver counts as not ready.
	KeyUnleased baseline.Reason = "APISERVER_KEY_UNLEASED"
	// KeyDead: the lease of a key is not known to etcd, so nobody renews it. The apiserver counts as not ready.
	KeyDead baseline.Reason = "APISERVER_KEY_DEAD"
	// Silent: an apiserver renews its key and does not answer, or not as a ready one. It counts as not ready.
	Silent baseline.Reason = "APISERVER_SILENT"
	// KeyUnreadable: a key that may tell of an apiserver cannot be read. It is left alone and left out.
	KeyUnreadable baseline.Reason = "APISERVER_KEY_UNREADABLE"
)

// Claim is a key that says that a server lives.
type Claim struct {
	Key     string
	Address netip.Addr
	Port    int32
	// Leased is whether the key has a lease, Alive whether etcd knows the lease.
	Leased, Alive bool
	// Silence says why the server does not answer; empty if it does, or was not asked.
	Silence string
	// Unreadable says why the key could not be read; empty if it could.
	Unreadable string
}

// Adopt makes a server of a claim whose server has no sidecar, and says what is wrong with it. A claim that cannot be read
// makes none.
func Adopt(claim Claim) (Server, []baseline.Change) {
	server := Server{Address: claim.Address, Port: claim.Port, Ready: true}
	object := func(reason baseline.Reason, detail string) (Server, []baseline.Change) {
		server.Ready, server.Detail = false, detail
		return server, []baseline.Change{report(reason, detail)}
	}
	switch {
	case claim.Unreadable != "":
		return object(KeyUnreadable, fmt.Sprintf("key %s: %s", claim.Key, claim.Unreadable))
	case !claim.Leased:
		server.Stale = true
		return object(KeyUnleased, fmt.Sprintf(
			"key %s has no lease, so it would outlive its server; delete it if the server is gone", claim.Key))
	case !claim.Alive:
		server.Stale = true
		return object(KeyDead, fmt.Sprintf("key %s has a lease that etcd does not know; delete it if the server is gone", claim.Key))
	case claim.Silence != "":
		return object(Silent, fmt.Sprintf("kube-apiserver %s renews %s and is not ready: %s", claim.Address, claim.Key, claim.Silence))
	default:
		return server, nil
	}
}

// ReportKey reports what is wrong with the key of a sidecar, of which everything but the lease may be well.
func ReportKey(isReadable bool, problem string) baseline.Change {
	if isReadable {
		return report(KeyUnleased, problem)
	}
	return report(KeyUnreadable, problem)
}
