package gateway_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

var (
	show         = flag.String("show", "", "serve the page over a simulated cluster on this address, until interrupted")
	showNodes    = flag.Int("show-nodes", 10_000, "nodes of the simulated cluster")
	showChanges  = flag.Int("show-changes", 500, "changes of Nodes per second")
	showServices = flag.Int("show-services", 40, "Services of the simulated cluster")
	showOff      = flag.Bool("show-off", false, "switch the loop node-health off")
	showMissing  = flag.Bool("show-missing", false, "make one replica dead")
	showHealthy  = flag.Bool("show-healthy", false, "simulate no findings")
)

// TestShow_SimulatedCluster is no test. It serves the page, for a look at it and for measurements:
//
//	go test ./gateway -run TestShow -show 127.0.0.1:7690 -timeout 0
func TestShow_SimulatedCluster(t *testing.T) {
	if *show == "" {
		t.Skip("serves only with -show")
	}
	k := newLeasesvc("l1", "l2", "l3", "l1", "l2", "l3")
	c := newBootstrapsvc("b1")
	_, b1 := c.start(t, "b1")
	_, b2 := c.start(t, "b2")
	c.simulate(!*showHealthy)
	if *showMissing {
		c.elect("")
	}
	members := newDirectory(b1, b2, healthy(t, "gateway", "g1"))
	for _, id := range []string{"l1", "l2", "l3"} {
		c, member := k.start(t, id)
		c.disabled.Store(*showOff)
		if *showMissing && id == "l3" {
			member = dead(t, "leasesvc", id)
		}
		members.members = append(members.members, member)
	}
	p := newSlicesvcWithServices(*showServices, "s1", "s2", "s1", "s2")
	p.contend(serviceName("shop", "s07"), "kube-controller-manager")
	for _, id := range []string{"s1", "s2"} {
		_, member := p.start(t, id)
		members.members = append(members.members, member)
	}
	var unhealthy []int
	k.change(func() {
		for i := range *showNodes {
			k.nodes[nodeName(i)] = simulated(i, nodev1.NodeHealth_HEALTH_READY)
		}
		for len(unhealthy) <= *showNodes/20 {
			unhealthy = k.degrade(unhealthy)
		}
	})
	service, err := gateway.New(gateway.Config{HTTPListen: *show, BackendTimeout: time.Second}, deps(members))
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, service)()
	fmt.Printf("the page is at http://%s/\n", service.HTTPAddress())
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	const perSecond = 50
	owed := 0.0 // changes that are due
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for {
		select {
		case <-interrupted:
			return
		case <-tick.C:
			k.change(func() {
				for owed += float64(*showChanges) / perSecond; owed >= 2; owed -= 2 { // a Node becomes unhealthy, another one ready
					unhealthy = k.degrade(unhealthy)
				}
			})
		}
	}
}

// degrade makes a random Node unhealthy. Once one in twenty is, it also makes the first of them
// ready. It returns the unhealthy Nodes. The caller holds the lock.
func (f *fakeLeasesvc) degrade(unhealthy []int) []int {
	if len(unhealthy) >= *showNodes/20+1 {
		f.nodes[nodeName(unhealthy[0])] = simulated(unhealthy[0], nodev1.NodeHealth_HEALTH_READY)
		unhealthy = unhealthy[1:]
	}
	i := rand.N(*showNodes)
	states := []nodev1.NodeHealth_Health{
		nodev1.NodeHealth_HEALTH_STARTING, nodev1.NodeHealth_HEALTH_NOT_READY, nodev1.NodeHealth_HEALTH_SUSPECT,
		nodev1.NodeHealth_HEALTH_SILENT, nodev1.NodeHealth_HEALTH_UNKNOWN,
	}
	f.nodes[nodeName(i)] = simulated(i, states[rand.N(len(states))])
	return append(unhealthy, i)
}

func nodeName(i int) string { return fmt.Sprintf("nodes/node-%d", i) }

func simulated(i int, health nodev1.NodeHealth_Health) *nodev1.NodeHealth {
	node := &nodev1.NodeHealth{
		Name: nodeName(i), Zone: fmt.Sprintf("zones/eu-1:%c", 'a'+i%3), Health: health, Ready: "True", Message: "a heartbeat is due every 5 s",
		Signals: []*nodev1.Signal{{Source: nodev1.SignalSource_SIGNAL_SOURCE_LEASE_OBJECT, SeenTime: timestamppb.Now()}}, ChangeTime: timestamppb.Now(),
	}
	if health >= nodev1.NodeHealth_HEALTH_SUSPECT {
		node.Message = "no heartbeat since its last Lease"
	}
	if health == nodev1.NodeHealth_HEALTH_UNKNOWN {
		node.Ready, node.Taints = "Unknown", []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}
	}
	return node
}
