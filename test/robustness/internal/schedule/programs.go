package schedule

import "github.com/trivet-dev/trivet/test/robustness/internal/history"

// Faults of the programs and of their links.
const (
	CallsLossy         Kind = "calls with loss"
	EtcdLossy          Kind = "etcd link with loss"
	KubeLossy          Kind = "kube-apiserver link with loss"
	BackendsFrozen     Kind = "all replicas frozen"
	CertificateRenewed Kind = "certificates renewed"
	AuthorityRotated   Kind = "authority rotated"
	CertificateExpired Kind = "certificate expired"
	RollingUpdate      Kind = "rolling update"
	SlowWatchers       Kind = "slow watch clients"
	DiskFull           Kind = "disk full"
	StreamChurn        Kind = "streams come and go"
	RepairInterrupted  Kind = "repair interrupted"
	ClockAhead         Kind = "kubelet clocks an hour ahead"
	ClockBack          Kind = "kubelet clocks an hour back"
)

// programEntries returns the faults of the programs and of their links.
func programEntries() []Entry {
	leaders := []string{history.Leasesvc, history.Bootstrapsvc, history.Slicesvc}
	all := append(leaders[:3:3], history.Gateway)
	return []Entry{
		{Kind: CallsLossy, Number: "F9", Services: leaders, Least: 8 * s, Most: 12 * s, What: "packets between one replica and its callers arrive 100 to 300 ms late; a tenth of them is lost, and arrives 200 to 1,000 ms later, as TCP sends it again"},
		{Kind: EtcdLossy, Number: "F9", Services: leaders, Least: 8 * s, Most: 12 * s, What: "packets between one replica and etcd arrive late and are lost, as those of calls with loss"},
		{Kind: KubeLossy, Long: true, Number: "F9", Services: leaders, Least: 8 * s, Most: 12 * s, Late: 13 * s / 10, What: "packets between each replica of the service and kube-apiserver arrive late and are lost, as those of calls with loss"},
		{Kind: BackendsFrozen, Signals: true, Number: "F17", Services: leaders, Least: 6 * s, Most: 9 * s, Excuses: true, What: "SIGSTOP to all replicas of the service while the gateway is asked, then SIGCONT"},
		{Kind: CertificateRenewed, Number: "F13", Least: 4 * s, Most: 8 * s, Graceful: true, What: "the certificates of all programs are replaced; no open stream may end"},
		{Kind: AuthorityRotated, Number: "F13", Least: 9 * s, Most: 12 * s, What: "another authority is trusted, then signs all certificates, then is the only one, which ends connections with certificates of the former one"},
		{Kind: CertificateExpired, Number: "F13", Services: all, Least: 5 * s, Most: 8 * s, Excuses: true, Refused: true, What: "the certificate of one replica has expired, and its connections are closed; calls of a client with an expired certificate fail too"},
		{Kind: RollingUpdate, Signals: true, Number: "F15", Services: leaders, Least: 2 * s, Most: 4 * s, Graceful: true, What: "SIGTERM to one replica after the other, each replaced by another build; the duration is the pause between two of them"},
		{Kind: SlowWatchers, Long: true, Number: "F16", Services: []string{history.Slicesvc, history.Gateway}, Least: 45 * s, Most: 50 * s, What: "60 watches of one replica whose clients read nothing, one byte per second, or no message"},
		{Kind: DiskFull, Number: "F18", Services: all, Least: 6 * s, Most: 10 * s, What: "no file of one replica may grow: RLIMIT_FSIZE is the size of its audit log and a part of a record"},
		{Kind: StreamChurn, Number: "F19", Services: []string{history.Leasesvc, history.Slicesvc, history.Gateway}, What: "1,000 streams of 50 connections to one replica begin, get an answer and end"},
		{Kind: RepairInterrupted, Signals: true, NeedsEtcd: true, Number: "F14", Services: []string{history.Bootstrapsvc}, Least: 2 * s, Most: 3 * s, Excuses: true, What: "four addresses in use are freed; the replica that repairs is killed after its first write, the next one before its write, and the next one after it; the duration is the time until a new process takes its place"},
		{Kind: ClockAhead, Number: "F12", Services: []string{history.Leasesvc}, Least: 5 * s, Most: 15 * s, What: "the clocks of all kubelets that renew Leases step by an hour, and back again"},
		{Kind: ClockBack, Long: true, Number: "F12", Services: []string{history.Leasesvc}, Least: 5 * s, Most: 15 * s, What: "the clocks of all kubelets that renew Leases step back by an hour, and forward again"},
	}
}

// Faults of single members of etcd.
const (
	EtcdLeaderMoved  Kind = "etcd leader moved"
	EtcdMemberKilled Kind = "etcd member killed"
	EtcdNoQuorum     Kind = "etcd without quorum"
	EtcdMemberCut    Kind = "link to one etcd member cut"
)

// etcdEntries are the rows about members of etcd.
func etcdEntries() []Entry {
	leaders := []string{history.Leasesvc, history.Bootstrapsvc, history.Slicesvc}
	return []Entry{
		{Kind: EtcdLeaderMoved, OfEtcd: true, Number: "F4", Least: 3 * s, Most: 6 * s, What: "etcd's leader hands over to another member, once a second"},
		{Kind: EtcdMemberKilled, OfEtcd: true, WritesHang: true, Number: "F4", Least: 6 * s, Most: 10 * s, What: "SIGKILL to the leader of etcd's three members, and a restart"},
		{Kind: EtcdNoQuorum, OfEtcd: true, Number: "F4", Least: 7 * s, Most: 12 * s, Excuses: true, What: "SIGKILL to two of etcd's three members, and a restart; the fault is over when both kube-apiservers answer"},
		{Kind: EtcdMemberCut, OfEtcd: true, Number: "F4", Services: leaders, Least: 8 * s, Most: 16 * s, What: "no byte passes between one replica and the leader of etcd's three members; those to the others pass"},
	}
}
