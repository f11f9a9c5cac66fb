package migrate

import (
	"fmt"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

const (
	// probeTime is how long a new Service stays without a slice before a program counts as silent.
	// A controller creates it within a second, or within some seconds under load.
	probeTime = 15 * time.Second
	// startTime is how long kube-controller-manager may take from its election to its first writes.
	startTime = 15 * time.Second
)

// managerRuns reports whether kube-controller-manager may run. It runs without a Lease if leader
// election is off.
func (f facts) managerRuns() bool {
	_, running := f.manager.Began(f.now)
	return running
}

// flags judges by the flags of kube-controller-manager whether its controller of a duty is off:
// proven if all its Pods run with the controller off, also that of the leader, and no write
// contradicts them. A Pod that runs has replaced the process with the former flags, so that the
// proof needs no other. It is pending if one has the controller on.
func (f facts) flags(duty diagnosis.Duty) state {
	m := f.manager
	off := m.Switched(duty)
	switch {
	case len(m.Programs) > 0 && off != diagnosis.Inactive:
		return pending
	case len(m.Programs) == 0, len(f.absentManagers) > 0, !m.LeaderIsVisible():
		return unclear
	case f.upstream.Activity == diagnosis.Inactive && !f.upstream.Direct:
		return proven
	default:
		return unclear
	}
}

// probedUpstream judges whether upstream's controller creates slices, by the last probe Service.
func (f facts) probedUpstream(wanted bool) (state, string) {
	began, _ := f.manager.Began(f.now)
	switch {
	case f.probeError != "":
		return unclear, f.probeError
	case f.probe == nil:
		return unclear, "no probe Service was watched yet"
	case f.probe.Upstream > 0 && wanted:
		return proven, "kube-controller-manager created the EndpointSlice of a new Service"
	case f.probe.Upstream > 0:
		return pending, "kube-controller-manager created the EndpointSlice of a new Service"
	case wanted:
		return pending, "kube-controller-manager creates no EndpointSlice for a new Service"
	case f.probe.Began.Before(began.Add(startTime)):
		return unclear, "kube-controller-manager has just started"
	case f.probe.Watched < probeTime:
		return unclear, "the probe Service was not watched long enough"
	default:
		return proven, fmt.Sprintf("kube-controller-manager created no EndpointSlice for a new Service within %s", f.probe.Watched.Round(time.Second))
	}
}

func (f facts) probedAlone(service string) (state, string) {
	switch {
	case f.probeError != "":
		return unclear, f.probeError
	case f.probe == nil:
		return unclear, "no probe Service was watched yet"
	case f.probe.Upstream > 0:
		return pending, "kube-controller-manager creates EndpointSlices, too"
	case f.probe.Trivet == 0:
		return pending, service + " creates no EndpointSlice for a new Service"
	case f.probe.Watched < probeTime:
		return unclear, "the probe Service was not watched long enough"
	default:
		return proven, service + " alone created the EndpointSlice of a new Service"
	}
}

// observed judges upstream's loop by what it leaves in the cluster.
func (f facts) observed(wanted diagnosis.Activity) (state, string) {
	switch {
	case f.kubeError != "":
		return unclear, f.kubeError
	case f.upstream.Activity == wanted:
		return proven, f.upstream.Sentence
	case f.upstream.Activity == diagnosis.Unclear:
		return unclear, f.upstream.Sentence
	default:
		return pending, f.upstream.Sentence
	}
}

// stopped is the result while a kube-apiserver is restarted: its key in etcd has ended, whatever
// its flag is.
func (f facts) stopped() (state, string) {
	return unclear, fmt.Sprintf("the kube-apiserver of %s does not run, so its flag is not known", strings.Join(f.stoppedServers, ", of "))
}

// carried judges whether Trivet's loop of a duty runs in every replica and every shard has a
// leader.
func (f facts) carried(duty diagnosis.Duty) (state, string) {
	name, loop := diagnosis.LoopOf(duty)
	service := f.installation.Service(name)
	c := diagnosis.CarrierOf(f.installation, duty)
	switch {
	case f.gatewayError != "":
		return unclear, f.gatewayError
	case len(c.On) == 0 && len(c.Silent) == 0:
		return pending, fmt.Sprintf("the loop %s runs in no replica of %s", loop, name)
	case len(c.Off) > 0:
		return pending, fmt.Sprintf("the loop is off, or only plans, in %s", strings.Join(c.Off, ", "))
	case len(c.Failing) > 0:
		return pending, fmt.Sprintf("the loop fails in %s", strings.Join(c.Failing, ", "))
	case len(c.Beginning) > 0:
		return pending, fmt.Sprintf("the loop has made no pass since it was switched on in %s", strings.Join(c.Beginning, ", "))
	case len(c.Silent) > 0:
		return unclear, fmt.Sprintf("no answer of %s", strings.Join(c.Silent, ", "))
	case service.LedShards < service.Shards:
		return pending, fmt.Sprintf("%d of %d shards have a leader", service.LedShards, service.Shards)
	default:
		return proven, fmt.Sprintf("the loop %s runs in %s of %s", loop, printer.Count(len(c.On), "replica"), name)
	}
}
