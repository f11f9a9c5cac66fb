package nodehealth

import (
	"maps"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// minOutage is the length from which each outage delays verdicts. Of shorter ones only the
	// first does in a grace period, so that checks which fail now and then forbid no verdict. An
	// outage counts from the last self-check that passed, and may have begun three seconds later.
	minOutage = 8 * time.Second
	// promptAnswer bounds the answers that extend no grace period. While a self-check runs for
	// longer, no Node is marked Unknown.
	promptAnswer = time.Second
)

// ClusterState is what one pass hands to the next one. Its methods return a new ClusterState.
type ClusterState struct {
	// recovered is when the last outage that delays verdicts ended, after it had lasted for a time;
	// 0 for none in the last grace period.
	recovered monotonic.Instant
	lasted    time.Duration
	// allDown says that every zone was fully disrupted in the last pass, zonesUp when that ended
	// last; 0 for never.
	allDown bool
	zonesUp monotonic.Instant
	// limiters are by zone. A zone without Nodes keeps its limiter.
	limiters map[string]limiter
	// checked is when the last passed self-check began; 0 for none.
	checked monotonic.Instant
	outage  period
	// unusable is the Delay while outage is on, and while a self-check has no answer for longer
	// than a prompt one takes.
	unusable Delay
	// slow is the slowest self-check of the last grace period.
	slow slowCheck
	// served is when a kubelet last reached kube-apiserver, as far as its signs show.
	served monotonic.Instant
	// servedSince is when kubelets were served again after a time in which none was.
	servedSince monotonic.Instant
}

// period is an open period of time.
type period struct {
	on    bool
	since monotonic.Instant
}

// slowCheck is a self-check that kube-apiserver answered slowly.
type slowCheck struct {
	took time.Duration
	at   monotonic.Instant
}

func (p period) begun(now monotonic.Instant) period {
	if p.on {
		return p
	}
	return period{on: true, since: now}
}

// Suspension returns what delays the marks of all Nodes and ends with an event; zero if nothing
// does.
func (c ClusterState) Suspension() Delay { return c.unusable }

// apiServerDelay returns the Delay of a Node after kube-apiserver was unusable or slow. Kubelets
// could not renew Leases either, and try again after pauses that grow with an outage. So every node
// has as long as the outage lasted: least at least, because a kubelet whose write failed in a short
// one tries again with its next renewal, and one grace period at most. signUntil is the end of what
// the last sign of life allows.
func (c ClusterState) apiServerDelay(grace, least time.Duration, signUntil monotonic.Instant) Delay {
	d := Delay{Reason: APIServerUnreachable}
	if c.recovered > 0 {
		d.Since, d.Until = c.recovered, c.recovered.Add(min(max(c.lasted, least), grace))
		d.Message = "kube-apiserver was unusable a short time ago, and every node has as long as that lasted"
	}
	if slow := signUntil.Add(c.slow.took); c.slow.took > 0 && slow > d.Until {
		d.Since, d.Until, d.Message = c.slow.at, slow, "kube-apiserver answered slowly, and a verdict waits for as long"
	}
	if d.Until == 0 {
		return Delay{}
	}
	return d
}

// zonesDelay returns the Delay after all zones were down: one cause for all is more likely than
// many.
func (c ClusterState) zonesDelay(grace time.Duration) Delay {
	if c.zonesUp == 0 {
		return Delay{}
	}
	return Delay{
		Reason: NoZoneReady, Message: "no zone had a ready node a short time ago, and every node has one grace period since",
		Since: c.zonesUp, Until: c.zonesUp.Add(grace),
	}
}

// CheckPassed notes that kube-apiserver answered a self-check that began at started. After a slow
// answer the grace periods are as much longer as it was slow.
func (c ClusterState) CheckPassed(started, now monotonic.Instant) ClusterState {
	if lasted := now.Sub(c.outage.since); c.outage.on && (lasted >= minOutage || c.recovered == 0) {
		c.recovered, c.lasted = now, lasted
	}
	c.outage, c.unusable = period{}, Delay{}
	if took := now.Sub(started); took >= promptAnswer && took >= c.slow.took {
		c.slow = slowCheck{took: took, at: now}
	}
	c.checked = max(c.checked, started)
	return c
}

// CheckFailure is why a self-check failed. Detail is a stable text.
type CheckFailure struct {
	// Denied says that kube-apiserver answered and refused.
	Denied bool
	Detail string
}

// CheckFailed notes that kube-apiserver gave no answer to a self-check, or refused it. The outage
// counts from the last self-check that passed.
func (c ClusterState) CheckFailed(now monotonic.Instant, failure CheckFailure) ClusterState {
	if c.checked > 0 {
		now = min(now, c.checked)
	}
	reason, text := APIServerUnreachable, "kube-apiserver does not answer or takes no Leases, so kubelets cannot renew theirs either: "
	if failure.Denied {
		reason, text = APIServerDenied, "kube-apiserver refuses to show Leases to this replica, or to take its own: the replica needs another role, or an admission webhook refuses Leases: "
	}
	c.outage = c.outage.begun(now)
	c.unusable = Delay{Reason: reason, Message: text + failure.Detail, Since: c.outage.since, Until: Open}
	return c
}

// CheckRuns notes that a self-check that began at started has no answer yet. Nodes wait for it if
// it is not prompt.
func (c ClusterState) CheckRuns(started, now monotonic.Instant) ClusterState {
	if now.Sub(started) >= promptAnswer && !c.unusable.Active() {
		c.unusable = Delay{
			Reason: APIServerUnreachable, Since: started, Until: Open,
			Message: "kube-apiserver has not answered a self-check yet, so kubelets may be unable to renew their Leases",
		}
	}
	return c
}

// withoutOld forgets an outage that ended a grace period ago, and a slow answer that is as old: no
// silence began before it.
func (c ClusterState) withoutOld(now monotonic.Instant, grace time.Duration) ClusterState {
	if now.Sub(c.recovered) > grace {
		c.recovered = 0
	}
	if c.slow.took > 0 && now.Sub(c.slow.at) > grace {
		c.slow = slowCheck{}
	}
	return c
}

// withAllDown sets whether all zones are down.
func (c ClusterState) withAllDown(now monotonic.Instant, down bool) ClusterState {
	if c.allDown && !down {
		c.zonesUp = now
	}
	c.allDown = down
	return c
}

// withTaint notes that a Node of a zone got its NoExecute taint, here or by another replica. An
// older taint changes nothing.
func (c ClusterState) withTaint(at monotonic.Instant, zone string) ClusterState {
	if l := c.limiters[zone]; l.used && l.last >= at {
		return c
	}
	limiters := maps.Clone(c.limiters)
	if limiters == nil {
		limiters = map[string]limiter{}
	}
	limiters[zone] = limiter{last: at, used: true}
	c.limiters = limiters
	return c
}
