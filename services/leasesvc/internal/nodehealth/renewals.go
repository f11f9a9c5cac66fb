package nodehealth

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// renewals are what the kubelets that renew Leases show together of the writes that kube-apiserver
// takes. Self-checks only read.
type renewals struct {
	// last is the last LeaseRenewal of any node; 0 for none.
	last monotonic.Instant
	// resumed is when Leases were renewed again after a pause; 0 for never.
	resumed monotonic.Instant
	// paused says that several kubelets renew Leases, and none did for too long.
	paused bool
	// several says that more than one kubelet renewed a Lease within a grace period.
	several bool
}

// next returns the renewals after a pass. A kubelet counts for a grace period after its renewal.
func (n renewals) next(now monotonic.Instant, nodes []NodeState, r Rules) renewals {
	kubelets, last, shortest := 0, n.last, r.GracePeriod
	for i := range nodes {
		s := &nodes[i].signs
		at := s.lastRenewal()
		if at == 0 || now.Sub(at) >= r.GracePeriod {
			continue
		}
		kubelets++
		last = max(last, at)
		if s.leaseDuration > 0 {
			shortest = min(shortest, s.leaseDuration)
		}
	}
	pause := r.renewalPause(shortest)
	if n.last > 0 && last.Sub(n.last) > pause {
		n.resumed = last
	}
	n.last, n.several = last, kubelets > 1
	n.paused = n.several && now.Sub(last) > pause
	return n
}

// excuse returns whether kube-apiserver may have taken no write since a kubelet's next renewal was
// due: other kubelets renew, and none has after that. The renewal was due after half of grace, and
// a kubelet delays it by 4 % at most.
func (n renewals) excuse(own monotonic.Instant, grace time.Duration) bool {
	return n.several && n.last.Sub(own) <= 21*grace/40
}

// renewalPause is how long no kubelet may renew a Lease before that is held against kube-apiserver:
// a little more than one renewal. A hostile duration cannot make it shorter than that.
func (r Rules) renewalPause(leaseDuration time.Duration) time.Duration {
	return 11 * max(leaseDuration/2, r.SessionGrace) / 20
}
