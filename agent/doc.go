// Package agent sends heartbeats to leasesvc: it is the client of the RPC StreamHeartbeats.
//
// Promise: while Run runs and replicas of leasesvc hold the shards, each holder beats at the
// interval that the server grants to its class, at the replica that holds its shard. There is one
// stream to each such replica, and the holders of one class share one message per beat.
//
// A holder registers at any replica and moves to the one that the replica names. It moves at once,
// so that thousands of holders are registered after two round trips. If the replica forwards the
// beat, the holder moves with the other holders of its message at a random time within half an
// interval. While the owner of a shard is unknown, its holders register again after growing pauses
// with jitter.
//
// A beat says that its holder is alive: for the class "node", that the kubelet is. A caller that
// observes the holder calls [Agent.Report]. It says when the holder was last observed to be alive,
// so that a living agent does not hide a dead kubelet, and conditions that are shown in the lease.
// A caller that cannot observe a kubelet proves only itself: leasesvc believes the kubelet's own
// signs then, if they contradict the beats. A caller that writes the Lease in place of the kubelet
// must report when it observed the kubelet.
//
// With [Config.BeatOnReport] a beat goes out because of a report, and never otherwise.
// [Agent.Renewed] and [Agent.AwaitRenewal] say what the servers accepted, and when the holder was
// last seen. [NewCollector] has the metrics of an Agent.
//
// An answer that accepts a beat acknowledges it: the leader of the shard has recorded it in its
// term. With [Config.Unacknowledged], a holder whose beats are not acknowledged in time is renewed
// in another way. So a Node whose agent reaches a kube-apiserver is not taken for dead, whatever
// happens to the replicas. Package nodelease has the other way for Nodes.
//
// When a stream breaks, or a response is two intervals late, its holders register again over a new
// connection after a pause with jitter. The holders of other streams are unaffected. A replica that
// rate-limits registrations is not contacted before its time. Leases outlive all of this on the
// servers. A rejection for a reason that the agent does not know is classified by its code, and an
// unknown directive is ignored.
//
// The agent has two goroutines for each stream and one that assigns holders, for any number of
// holders; with Unacknowledged one more, and one for each call of it. A stream without holders
// closes. Timers decide when to beat; no clock is compared with another one.
//
// A server asks for fresh credentials before those of a stream end. The holders then register over
// a new connection, with the certificate and the token that the files have by then, before their
// next beat is due. While the server accepts no credentials, the agent tries again after growing
// pauses. A holder that the credentials do not permit is listed in Status.Rejected with
// NOT_AUTHORIZED, and registers again after a minute and more.
//
// A holder whose name another boot has taken over stops beating and is listed in Status.Superseded.
// It registers again, after a pause with jitter, once the server says that the lease of the other
// boot can have ended: so a clone of a machine that ran once does not silence the machine. While
// both machines live, the lease stays with the one that registered last.
//
// When a holder is removed, or Run ends, the lease expires. With Config.ReleaseOnStop the end of
// Run releases the leases: for holders that stop for good, or with Config.KeepLeaseObjects for
// holders that live on without the Agent.
package agent
