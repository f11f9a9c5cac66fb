package apiservers

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// ProbeResult is the result of one probe.
type ProbeResult struct {
	// Time is when the probe ended.
	Time time.Time
	// OK says that the server called itself ready.
	OK bool
	// Silent says that the server accepted the connection and did not answer in time.
	Silent bool
	// Unverified says that the certificate of the answer could not be verified.
	Unverified bool
	// Detail describes the result for operators.
	Detail string
}

// ReadinessThresholds say when a ready server becomes not ready.
type ReadinessThresholds struct {
	// Failures is how many probes in a row have to fail.
	Failures int
	// Silence is how long a silent server stays ready in addition, counted from its last success.
	Silence time.Duration
}

// Readiness is what the probes of one server show so far. The zero value is a server that was never
// probed, which is not ready.
type Readiness struct {
	Ready bool
	// Failures counts the failed probes since the last success.
	Failures int
	// LastSuccess is when the last successful probe ended; zero if there was none.
	LastSuccess time.Time
	Last        ProbeResult
}

// After returns the readiness after one more probe. One success makes a server ready. Only several
// failures in a row make it not ready, so that one slow answer does not cut pods off.
//
// A silent server stays ready for longer than one that refuses connections or calls itself not
// ready. It may be busy and still serve the pods that are connected.
func (r Readiness) After(result ProbeResult, thresholds ReadinessThresholds) Readiness {
	if result.OK {
		return Readiness{Ready: true, LastSuccess: result.Time, Last: result}
	}
	next := Readiness{Failures: r.Failures + 1, LastSuccess: r.LastSuccess, Last: result}
	isTolerated := next.Failures < thresholds.Failures ||
		result.Silent && result.Time.Sub(r.LastSuccess) < thresholds.Silence
	next.Ready = r.Ready && isTolerated
	return next
}

const (
	// KeyUnleased: the key of an apiserver has no lease, so it would outlive the apiserver, as
	// after some restores. The apiserver counts as not ready.
	KeyUnleased baseline.Reason = "APISERVER_KEY_UNLEASED"
	// KeyDead: etcd does not know the lease of a key, so the key is never renewed. The apiserver
	// counts as not ready.
	KeyDead baseline.Reason = "APISERVER_KEY_DEAD"
	// Silent: an apiserver renews its key and does not call itself ready. It counts as not ready.
	Silent baseline.Reason = "APISERVER_SILENT"
	// KeyUnreadable: a key that may be of an apiserver cannot be read. It is ignored.
	KeyUnreadable baseline.Reason = "APISERVER_KEY_UNREADABLE"
)

// MasterLease is a key by which a kube-apiserver's own reconciler says that the server lives.
type MasterLease struct {
	// Key is the whole etcd key.
	Key string
	// Address is the address in the value; the zero Addr if it cannot be read.
	Address netip.Addr
	// Leased says that the key has a lease, Alive that etcd knows the lease. A live server has
	// both.
	Leased, Alive bool
	// TTL is the rest of the lease.
	TTL time.Duration
	// Unreadable says why the value could not be read; empty if it could.
	Unreadable string
}

// Adopt returns the server of a master lease, for a server that has no sidecar, and reports what is
// wrong with it. Every server listens on port. notReady is the result of its last probe; empty if
// it is ready or was never probed.
func Adopt(lease MasterLease, port int32, notReady string) (Server, []baseline.Change) {
	server := Server{Address: lease.Address, Port: port, Ready: true}
	object := func(reason baseline.Reason, detail string) (Server, []baseline.Change) {
		server.Ready, server.Detail = false, detail
		return server, []baseline.Change{report(reason, detail)}
	}
	switch {
	case lease.Unreadable != "":
		return object(KeyUnreadable, fmt.Sprintf("key %s: %s", lease.Key, lease.Unreadable))
	case !lease.Leased:
		server.Stale = true
		return object(KeyUnleased, fmt.Sprintf(
			"key %s has no lease, so it would outlive its server; delete it if the server is gone", lease.Key))
	case !lease.Alive:
		server.Stale = true
		return object(KeyDead, fmt.Sprintf("key %s has a lease that etcd does not know; delete it if the server is gone", lease.Key))
	case notReady != "":
		return object(Silent, fmt.Sprintf("kube-apiserver %s renews %s and is not ready: %s", lease.Address, lease.Key, notReady))
	default:
		return server, nil
	}
}

// ReportKey reports a problem of a sidecar's key: that it cannot be read, or that it has no lease.
func ReportKey(isReadable bool, problem string) baseline.Change {
	if isReadable {
		return report(KeyUnleased, problem)
	}
	return report(KeyUnreadable, problem)
}
