// Package acknowledge says how long a renewal of a Node waits for the leader of its shard before it
// goes to kube-apiserver instead. The endpoint of trivet-agent and package agent share this rule.
package acknowledge

import "time"

// Latest returns how long after the last acknowledged renewal the next one is written, whatever
// happens. lease is the duration of the Lease.
func Latest(lease time.Duration) time.Duration { return lease * 41 / 100 }

// By returns until when a renewal that began at a time may wait for its acknowledgement. The last
// acknowledged renewal began at acknowledged; zero for none. lease is the duration of the Lease,
// and timeout how long the caller waits for everything; 0 for without end.
//
// With a Lease of 40 s, of which a kubelet renews after a quarter, that is 6 s after the begin: a
// crash of the leader is over in 5.3 s. It is 16.4 s after the last acknowledged renewal, so that a
// late acknowledgement does not delay the next write. And it is three fifths of the timeout, which
// leaves the rest for the write.
func By(begun, acknowledged time.Time, lease, timeout time.Duration) time.Time {
	within := lease * 3 / 20
	if timeout > 0 {
		within = min(within, timeout*3/5)
	}
	by := begun.Add(within)
	if latest := acknowledged.Add(Latest(lease)); !acknowledged.IsZero() && latest.Before(by) {
		return latest
	}
	return by
}
