package leasesvc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// The times of the class "node" in the tests of duplicates.
const (
	duplicateInterval = 300 * time.Millisecond
	duplicateGrace    = 2 * time.Second
)

// listen serves a fixture on loopback and returns its address.
func (f *fixture) listen() string {
	f.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	cfg := rpcserver.DefaultConfig(listener.Addr().String())
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler), Unvalidated: leasesvc.Unvalidated()})
	if err != nil {
		f.t.Fatal(err)
	}
	server.Register(f.service.Register)
	stop := background(func(ctx context.Context) error { return server.Serve(ctx, listener) })
	f.t.Cleanup(func() {
		if err := stop(); err != nil {
			f.t.Error(err)
		}
	})
	return listener.Addr().String()
}

// newDuplicateFixture returns a fixture whose nodes expire after duplicateGrace, and a function
// that runs the agent of one boot of the Node n1.
func newDuplicateFixture(t *testing.T) (f *fixture, boot func(id string) (a *agent.Agent, stop func())) {
	t.Helper()
	f = newFixture(t, setup{config: func(c *leasesvc.Config) {
		c.Classes[0].HeartbeatInterval, c.Classes[0].Grace = duplicateInterval, duplicateGrace
	}})
	address := f.listen()
	return f, func(id string) (*agent.Agent, func()) {
		a, err := agent.New(agent.Config{
			Targets: []string{address}, Dial: dialLoopback, Holders: []agent.Holder{{Class: leasesvc.NodeClass, Name: "n1", BootID: id}},
		})
		if err != nil {
			t.Fatal(err)
		}
		end := background(a.Run)
		stopped := false
		stop := func() {
			if stopped {
				return
			}
			stopped = true
			if err := end(); err != nil {
				t.Error(err)
			}
		}
		t.Cleanup(stop)
		return a, stop
	}
}

// awaitBoot waits until a boot of the Node n1 has its lease.
func (f *fixture) awaitBoot(id string) {
	f.t.Helper()
	f.eventually(func() error {
		response, err := f.leases.GetLease(f.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
		if err != nil {
			return err
		}
		if lease := response.Lease; lease.Holder.BootId != id || lease.State != leasev1.Lease_STATE_ALIVE {
			return fmt.Errorf("the lease is %v of boot %s, want it alive and of boot %s", lease.State, lease.Holder.BootId, id)
		}
		return nil
	})
}

// duplicateEvents returns the Events about other boots of the Node n1, and how often they occurred.
func (f *fixture) duplicateEvents() (events []corev1.Event, occurrences int32) {
	f.t.Helper()
	list, err := f.kube.CoreV1().Events("").List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == "n1" && e.Reason == "DuplicateHolder" {
			events, occurrences = append(events, e), occurrences+e.Count
		}
	}
	return events, occurrences
}

// A clone of a machine boots once and ends. The agent of the machine itself was superseded
// meanwhile; it has the lease again without a restart.
func TestDuplicates_ACloneThatBootsOnceDoesNotSilenceTheNode(t *testing.T) {
	t.Parallel()
	f, boot := newDuplicateFixture(t)
	boot("machine")
	f.awaitBoot("machine")
	_, stopClone := boot("clone")
	f.awaitBoot("clone")
	stopClone()
	f.awaitBoot("machine")
	f.eventually(func() error {
		if events, _ := f.duplicateEvents(); len(events) == 0 {
			return errors.New("no Event on the Node names the two boots")
		}
		return nil
	})
}

// Two machines with one name live. The lease stays with the one that registered last, the other one
// asks seldom, and both are reported.
func TestDuplicates_TwoLivingBootsDoNotTakeTurns(t *testing.T) {
	t.Parallel()
	f, boot := newDuplicateFixture(t)
	boot("first")
	f.awaitBoot("first")
	second, stopSecond := boot("second")
	f.awaitBoot("second")
	f.eventually(func() error {
		var codes []string
		for _, p := range f.service.Problems() {
			codes = append(codes, p.Code)
		}
		if !slices.Contains(codes, "DUPLICATE_HOLDERS") {
			return fmt.Errorf("problems %v, want DUPLICATE_HOLDERS", codes)
		}
		return nil
	})
	// Nothing may change while the second boot beats for two grace periods.
	enough := second.Status().Beats + uint64(2*duplicateGrace/duplicateInterval) + 1
	f.eventually(func() error {
		if n := second.Status().Beats; n < enough {
			return fmt.Errorf("%d of %d beats", n, enough)
		}
		return nil
	})
	if status := second.Status(); status.Registered != 1 || len(status.Superseded) > 0 {
		t.Errorf("the agent of the second boot has the status %+v", status)
	}
	metrics := f.sample()
	if n := metrics["trivet_lease_heartbeats_total took_over"]; n != 1 {
		t.Errorf("the lease changed its boot %v times, want once", n)
	}
	if n := metrics["trivet_lease_heartbeats_total superseded"]; n < 2 || n > 10 {
		t.Errorf("%v beats of the first boot were rejected, want some, and far fewer than its interval allows", n)
	}
	events, occurrences := f.duplicateEvents()
	if occurrences != 1 || !strings.Contains(events[0].Message, "first") || !strings.Contains(events[0].Message, "second") {
		t.Errorf("%d occurrences of Events %v, want one that names both boots", occurrences, events)
	}
	stopSecond()
	f.awaitBoot("first")
}
