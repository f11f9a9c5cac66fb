package eviction

import (
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// forever is a patience that has no end.
	forever = time.Duration(math.MaxInt64)
	// lifetime is what no pod lives; longer patience is as good as forever, and adding to it could overflow.
	lifetime = 100 * 365 * 24 * time.Hour
)

// patienceOf is how long a pod with these tolerations stays for a taint. As upstream, the first toleration that fits counts.
func patienceOf(tolerations []corev1.Toleration, taint *corev1.Taint) time.Duration {
	for i := range tolerations {
		t := &tolerations[i]
		switch {
		case !tolerates(t, taint):
			continue
		case t.TolerationSeconds == nil || *t.TolerationSeconds > int64(lifetime/time.Second):
			return forever
		default:
			return time.Duration(max(*t.TolerationSeconds, 0)) * time.Second
		}
	}
	return 0
}

// tolerates compares as the API says. Gt and Lt are off in upstream's controller unless a feature gate is on; a pod can only
// have them where it is on in the kube-apiserver, so they count.
func tolerates(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpGt, corev1.TolerationOpLt:
		has, hasErr := strconv.ParseInt(taint.Value, 10, 64)
		limit, limitErr := strconv.ParseInt(t.Value, 10, 64)
		if hasErr != nil || limitErr != nil {
			return false
		}
		return t.Operator == corev1.TolerationOpGt && has > limit || t.Operator == corev1.TolerationOpLt && has < limit
	}
	return false
}
