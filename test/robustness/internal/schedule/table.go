package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// Kind names a fault of the table.
type Kind string

// Faults.
const (
	Kill            Kind = "leader killed"
	Freeze          Kind = "leader frozen"
	Revoke          Kind = "session revoked"
	CutBoth         Kind = "etcd link cut"
	CutToEtcd       Kind = "etcd link cut towards etcd"
	CutFromEtcd     Kind = "etcd link cut from etcd"
	EtcdFrozen      Kind = "etcd frozen"
	Compact         Kind = "compaction while cut off"
	SlowAPIServer   Kind = "kube-apiserver slow"
	Throttled       Kind = "429 storm"
	Conflicts       Kind = "409 storm"
	StalledWatches  Kind = "watches stalled"
	LateWatches     Kind = "watches late"
	CallsCut        Kind = "calls cut towards the replica"
	CallsSlow       Kind = "calls slow"
	APIServerKilled Kind = "kube-apiserver killed"
	EtcdStopped     Kind = "etcd stopped"
	Herd            Kind = "all connections closed"
	Starved         Kind = "leader starved of CPU"
	AddressFreed    Kind = "address in use freed"
	CutTwice        Kind = "etcd link cut twice"
	CallsCutLong    Kind = "calls cut for long"
	CallsCutInTurn  Kind = "calls cut in turn"
	HalfOfCallsCut  Kind = "half of the calls cut"
)

// Entry is one row of the table.
type Entry struct {
	Kind Kind
	// Number is the row of the fault matrix.
	Number string
	// Services can have the fault. Empty: it concerns all of them at once.
	Services []string
	// Least and Most bound its duration. Both are 0 for a fault that is over at once.
	Least, Most time.Duration
	// Excuses says that the services cannot do their work before the fault is over. The gateway
	// still answers a list of shards, and what is listed is as old as the list says.
	Excuses bool
	// Refused says that clients refuse a service with the fault, and get no answer of it.
	Refused bool
	// Late is how much later than it was sent a request to Kubernetes may reach kube-apiserver.
	Late time.Duration
	// Shows are the rules of the oracle that the fault is there to test: they have no excuse.
	Shows []string
	// Unreached says that one replica receives nothing from its callers, or from half of them: it
	// need not notice in time that a Node with an agent is dead.
	Unreached bool
	// Notice is how long a service has to see the fault before it acts on it.
	Notice time.Duration
	// Signals says that the fault is made of signals to one process. A service has one such fault
	// at a time: SIGCONT would end another one early.
	Signals bool
	// Graceful says that no client may notice the fault: a call with retries succeeds.
	Graceful bool
	// OfEtcd says that the fault stops, starts or cuts off members of etcd. A step has one such
	// fault, because the end of one would end another one early.
	OfEtcd bool
	// WritesHang says that etcd loses its leader, so that a write of kube-apiserver that is under
	// way may hang for seven seconds and fail.
	WritesHang bool
	// NeedsEtcd says that etcd must have a quorum while the fault is injected.
	NeedsEtcd bool
	// Long says that the short form has none of it: the fault takes long, or differs from another
	// one in its direction or extent only.
	Long bool
	// What describes the injection.
	What string
}

// NoQuorum returns whether etcd has no quorum during the fault.
func (e Entry) NoQuorum() bool { return e.OfEtcd && e.Excuses }

// Judge sets what the rules of the oracle must know of a fault in the time of a window.
func (e Entry) Judge(w *history.Window) {
	w.Graceful, w.NoQuorum, w.WritesHang, w.Late, w.Excused = e.Graceful, e.NoQuorum(), e.WritesHang, e.Late, 0
	w.Shows = append(slices.Clone(e.Shows), "told")
	if !e.Refused {
		w.Shows = append(w.Shows, "silence")
	}
	switch {
	case e.Excuses:
		w.Excused = w.To
	case e.Notice > 0:
		w.Excused = min(w.To, w.From+e.Notice)
	}
}

const s = time.Second

// Table returns all faults. A seed depends on their order.
func Table() []Entry {
	leaders := []string{history.Leasesvc, history.Bootstrapsvc, history.Slicesvc}
	return slices.Concat([]Entry{
		{Kind: Kill, Signals: true, Number: "F1", Services: append(leaders[:3:3], history.Gateway), What: "SIGKILL to the replica with the most shards; a new process takes its place 2 s later"},
		{Kind: Freeze, Signals: true, Number: "F2", Services: leaders, Least: 8 * s, Most: 12 * s, What: "SIGSTOP for longer than a session, then SIGCONT"},
		{Kind: Revoke, NeedsEtcd: true, Number: "F3", Services: leaders, What: "the replica's etcd lease is revoked"},
		{Kind: CutBoth, Long: true, Number: "F4", Services: leaders, Least: 7 * s, Most: 12 * s, What: "no byte passes between one replica and etcd"},
		{Kind: CutToEtcd, Number: "F4", Services: leaders, Least: 7 * s, Most: 12 * s, What: "no byte passes from one replica to etcd"},
		{Kind: CutFromEtcd, Number: "F4", Services: leaders, Least: 7 * s, Most: 12 * s, What: "no byte passes from etcd to one replica"},
		{Kind: EtcdFrozen, Number: "F4", Least: 7 * s, Most: 12 * s, Excuses: true, What: "no byte passes between etcd and any replica"},
		{Kind: Compact, NeedsEtcd: true, Number: "F5", Services: leaders, Least: s, Most: 3 * s, What: "etcd compacts its history while a replica is cut off, so that its watches cannot resume"},
		{Kind: SlowAPIServer, Number: "F6", Services: leaders, Least: 8 * s, Most: 12 * s, What: "kube-apiserver answers each request of the service one second later"},
		{Kind: Throttled, Number: "F6", Services: leaders, Least: 6 * s, Most: 10 * s, Excuses: true, What: "each request of the service that is no watch is answered with 429"},
		{Kind: Conflicts, Number: "F6", Services: leaders, Least: 6 * s, Most: 10 * s, Excuses: true, What: "each update and patch of the service is answered with 409"},
		{Kind: StalledWatches, Number: "F7", Services: leaders, Least: 6 * s, Most: 10 * s, Excuses: true, What: "the open watches of the service deliver nothing, and then everything"},
		{Kind: LateWatches, Number: "F7", Services: leaders, Least: 8 * s, Most: 12 * s, What: "the watches of the service deliver two seconds late"},
		{Kind: CallsCut, Number: "F8", Services: []string{history.Leasesvc}, Least: 6 * s, Most: 10 * s, Unreached: true, What: "no byte of agents, gateways and replicas arrives at one replica; its answers leave"},
		{Kind: CallsSlow, Long: true, Number: "F9", Services: leaders, Least: 8 * s, Most: 12 * s, What: "bytes between one replica and its callers arrive 200 ms late in both directions"},
		{Kind: APIServerKilled, Number: "F6", Least: 20 * s, Most: 24 * s, Notice: 10 * s, Shows: []string{"published"}, What: "SIGKILL to one of two kube-apiservers, and a restart; its replicas have no other one"},
		{Kind: EtcdStopped, Long: true, OfEtcd: true, Number: "F4", Least: 7 * s, Most: 12 * s, Excuses: true, What: "etcd is stopped and started again; the fault is over when both kube-apiservers answer"},
		{Kind: Herd, Number: "F10", What: "each connection of agents, gateways and replicas to any replica is closed at the same moment"},
		{Kind: Starved, Signals: true, Number: "F11", Services: leaders, Least: 8 * s, Most: 12 * s, What: "the replica with the most shards runs 10 ms of each 100 ms"},
		{Kind: CutTwice, Long: true, Number: "F4", Services: []string{history.Leasesvc}, Least: 20 * s, Most: 26 * s, What: "no byte passes between one replica and etcd for a third of the time, and again after the second third"},
		{Kind: AddressFreed, NeedsEtcd: true, Number: "F14", Services: []string{history.Bootstrapsvc}, What: "the allocation of an address in use is deleted through kube-apiserver"},
	}, programEntries(), etcdEntries(), []Entry{
		{Kind: CallsCutLong, Long: true, Number: "F8", Services: []string{history.Leasesvc}, Least: 34 * s, Most: 40 * s, Notice: 10 * s, Unreached: true, Shows: []string{"living", "lease"}, What: "no byte of agents, gateways and replicas arrives at one replica, for longer than each grace period"},
		{Kind: CallsCutInTurn, Long: true, Number: "F8", Services: []string{history.Leasesvc}, Least: 68 * s, Most: 80 * s, Notice: 10 * s, Unreached: true, Shows: []string{"living", "lease"}, What: "calls cut for long, at one replica after the other, until all had it"},
		{Kind: HalfOfCallsCut, Long: true, Number: "F8", Services: []string{history.Leasesvc}, Least: 34 * s, Most: 40 * s, Notice: 10 * s, Unreached: true, Shows: []string{"living", "lease"}, What: "no byte of every second connection arrives at one replica, for longer than each grace period"},
	})
}

// linkOf names the link of a replica that a fault disturbs.
func linkOf(kind Kind) string {
	switch kind {
	case CutBoth, CutToEtcd, CutFromEtcd, CutTwice, EtcdFrozen, Compact, EtcdLossy, EtcdMemberCut:
		return "etcd"
	case CallsCut, CallsCutLong, CallsCutInTurn, HalfOfCallsCut, CallsSlow, CallsLossy:
		return "calls"
	case SlowAPIServer, Throttled, Conflicts, StalledWatches, LateWatches, KubeLossy, RepairInterrupted:
		return "kube-apiserver"
	default:
		return ""
	}
}

// Select returns the entries that names name, separated by commas; all of them for an empty text.
func Select(names string) ([]Entry, error) {
	if names == "" {
		return Table(), nil
	}
	var out []Entry
	for _, name := range strings.Split(names, ",") {
		matching := slices.DeleteFunc(Table(), func(e Entry) bool { return string(e.Kind) != name && e.Number != name })
		if len(matching) == 0 {
			return nil, fmt.Errorf("%q is neither a fault nor a number of the table", name)
		}
		out = append(out, matching...)
	}
	return out, nil
}

// EntryOf returns the row of a kind.
func EntryOf(kind Kind) Entry {
	i := slices.IndexFunc(Table(), func(e Entry) bool { return e.Kind == kind })
	return Table()[i]
}
