package robustness

import (
	"fmt"
	"slices"
)

// traffic names a profile of traffic.
type traffic string

// Profiles of traffic.
const (
	mixed     traffic = "mixed"     // Pods and Services change
	readiness traffic = "readiness" // Pods become ready and unready, and are replaced
	rollouts  traffic = "rollouts"  // all Pods of one Service after another are replaced
	nodeChurn traffic = "nodes"     // Nodes come and go
	ports     traffic = "services"  // Services with node ports come and go
	quiet     traffic = "quiet"     // only nodes renew
)

func profiles() []traffic { return []traffic{mixed, readiness, rollouts, nodeChurn, ports, quiet} }

// profileOf returns the profile of a seed: the seeds have them in turn, unless one is named.
func profileOf(seed uint64) traffic {
	if *profileName != "" {
		return profileNamed(*profileName)
	}
	return profiles()[int(seed)%len(profiles())]
}

// profileNamed returns a profile; mixed without a name.
func profileNamed(name string) traffic {
	switch p := traffic(name); {
	case name == "":
		return mixed
	case slices.Contains(profiles(), p):
		return p
	default:
		panic(fmt.Sprintf("-robustness.profile=%s is none of %v", name, profiles()))
	}
}

// pods says whether Pods change.
func (t traffic) pods() bool { return t == mixed || t == readiness || t == rollouts }

// services says whether Services change.
func (t traffic) services() bool { return t == mixed || t == ports }
