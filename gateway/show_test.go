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
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

var (
	show         = flag.String("show", "", "serve the page over a simulated fleet on this address, until interrupted")
	showNodes    = flag.Int("show-nodes", 10_000, "nodes of the simulated fleet")
	showChanges  = flag.Int("show-changes", 500, "changes of the simulated fleet per second")
	showServices = flag.Int("show-services", 40, "Services of the simulated fleet")
	showOff      = flag.Bool("show-off", false, "switch the loop node-health off")
	showMissing  = flag.Bool("show-missing", false, "let one of the replicas be dead")
	showWell     = flag.Bool("show-well", false, "let nothing be wrong with allocations")
)

// Not a test but a way to look at the page and to measure it:
//
//	go test ./gateway -run TestShow -show 127.0.0.1:7690 -timeout 0
func TestShow_SimulatedFleet(t *testing.T) {
	if *show == "" {
		t.Skip("serves only with -show")
	}
	k := newKitchen("l1", "l2", "l3", "l1", "l2", "l3")
	c := newCellar("b1")
	_, b1 := c.hire(t, "b1")
	_, b2 := c.hire(t, "b2")
	c.furnish(!*showWell)
	if *showMissing {
		c.elect("")
	}
	members := newDirectory(b1, b2, standing(t, "gateway", "g1"))
	for _, id := range []string{"l1", "l2", "l3"} {
		c, member := k.hire(t, id)
		c.disabled.Store(*showOff)
		if *showMissing && id == "l3" {
			member = dead(t, "leasesvc", id)
		}
		members.members = append(members.members, member)
	}
	p := stocked(*showServices, "s1", "s2", "s1", "s2")
	p.contend(serviceName("shop", "s07"), "kube-controller-manager")
	for _, id := range []string{"s1", "s2"} {
		_, member := p.hire(t, id)
		members.members = append(members.members, member)
	}
	var sick []int
	k.change(func() {
		for i := range *showNodes {
			k.nodes[nodeName(i)] = simulated(i, leasev1.NodeHealth_HEALTH_READY)
		}
		for len(sick) <= *showNodes/20 {
			sick = k.upset(sick)
		}
	})
	service, err := gateway.New(gateway.Config{HTTPListen: *show, BackendTimeout: time.Second}, deps(members))
	if err != nil {
		t.Fatal(err)
	}
	defer start(t, service)()
	fmt.Printf("the page is at http://%s/\n", service.HTTPAddress())
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	const perSecond = 50
	owed := 0.0 // changes
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for {
		select {
		case <-interrupted:
			return
		case <-tick.C:
			k.change(func() {
				for owed += float64(*showChanges) / perSecond; owed >= 2; owed -= 2 { // one falls ill, one gets well
					sick = k.upset(sick)
				}
			})
		}
	}
}

// upset changes the health of one node: a random one falls ill or, once one in twenty is, the one that has been ill for longest
// gets well. It returns who is ill. The caller holds the lock.
func (k *kitchen) upset(sick []int) []int {
	if len(sick) >= *showNodes/20+1 {
		k.nodes[nodeName(sick[0])] = simulated(sick[0], leasev1.NodeHealth_HEALTH_READY)
		sick = sick[1:]
	}
	i := rand.N(*showNodes)
	ill := []leasev1.NodeHealth_Health{
		leasev1.NodeHealth_HEALTH_STARTING, leasev1.NodeHealth_HEALTH_NOT_READY, leasev1.NodeHealth_HEALTH_SUSPECT,
		leasev1.NodeHealth_HEALTH_SILENT, leasev1.NodeHealth_HEALTH_UNKNOWN,
	}
	k.nodes[nodeName(i)] = simulated(i, ill[rand.N(len(ill))])
	return append(sick, i)
}

func nodeName(i int) string { return fmt.Sprintf("nodes/node-%d", i) }

func simulated(i int, health leasev1.NodeHealth_Health) *leasev1.NodeHealth {
	node := &leasev1.NodeHealth{
		Name: nodeName(i), Zone: fmt.Sprintf("eu-1:%c", 'a'+i%3), Health: health, Ready: "True", Reason: "it beats every 5 s",
		SignSource: leasev1.NodeHealth_SIGN_SOURCE_LEASE, SignTime: timestamppb.Now(), ChangeTime: timestamppb.Now(),
	}
	if health >= leasev1.NodeHealth_HEALTH_SUSPECT {
		node.Reason = "no sign of life since its last Lease"
	}
	if health == leasev1.NodeHealth_HEALTH_UNKNOWN {
		node.Ready, node.Taints = "Unknown", []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}
	}
	return node
}
