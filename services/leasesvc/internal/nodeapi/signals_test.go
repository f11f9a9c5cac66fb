package nodeapi

import (
	"fmt"
	"testing"
	"time"
	"unique"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// now is the time of the snapshot, which is 1,000 seconds after the begin of its clock.
func now() time.Time { return time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC) }

func second(n int) monotonic.Instant { return monotonic.Instant(0).Add(time.Duration(n) * time.Second) }

func ago(seconds int) time.Time { return now().Add(-time.Duration(seconds) * time.Second) }

func TestSignals_TheLatestFirstAndTheDecidingOneExpires(t *testing.T) {
	lease := func(state session.State, beat, heard, expires int) *sessioncontroller.Lease {
		return &sessioncontroller.Lease{State: state, ObserveTime: ago(beat), LastReportTime: ago(heard), Deadline: ago(expires)}
	}
	alive := nodehealthcontroller.Result{
		Session: session.Alive, StatusUpdated: second(900),
		Assessment: nodehealth.Assessment{Health: nodehealth.Alive, By: nodehealth.SessionBeat},
	}
	expired := nodehealthcontroller.Result{
		Session: session.Expired, LeaseRenewed: second(910), StatusUpdated: second(920),
		Assessment: nodehealth.Assessment{Health: nodehealth.Silent, By: nodehealth.SessionBeat, Deadline: second(990)},
	}
	for name, c := range map[string]struct {
		result nodehealthcontroller.Result
		lease  *sessioncontroller.Lease
		want   []string
	}{
		"a lease keeps it alive, in a watch": {result: alive, want: []string{"KUBELET", "AGENT", "NODE_STATUS -1m40s"}},
		"a lease keeps it alive": {
			result: alive, lease: lease(session.Alive, 3, 3, -17), want: []string{"KUBELET -3s until 17s", "AGENT -3s", "NODE_STATUS -1m40s"},
		},
		"the agent outlives the kubelet": {
			result: expired, lease: lease(session.Expired, 30, 1, 10),
			want: []string{"AGENT -1s", "KUBELET -30s until -10s", "NODE_STATUS -1m20s", "LEASE_OBJECT -1m30s"},
		},
		"a lease expired, in a watch": {
			result: expired, want: []string{"KUBELET until -10s", "NODE_STATUS -1m20s", "LEASE_OBJECT -1m30s"},
		},
		"the kubelet renews its Lease object": {
			result: nodehealthcontroller.Result{
				LeaseRenewed: second(996), StatusUpdated: second(900),
				Assessment: nodehealth.Assessment{Health: nodehealth.Alive, Heard: second(996), By: nodehealth.LeaseRenewal, Deadline: second(1046)},
			},
			want: []string{"LEASE_OBJECT -4s until 46s", "NODE_STATUS -1m40s"},
		},
		"none yet": {
			result: nodehealthcontroller.Result{
				Assessment: nodehealth.Assessment{Health: nodehealth.Starting, Heard: second(980), Deadline: second(1040)},
			},
			want: []string{"NONE -20s until 40s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot := &nodehealthcontroller.Snapshot{At: nodehealth.Moment{Instant: second(1000), Wall: now()}}
			view := newNodeView(snapshot, &nodehealthcontroller.Node{Object: &corev1.Node{}, Result: c.result})
			view.lease = c.lease
			status := view.status()
			var got []string
			for _, s := range view.signals(&status) {
				text := s.Source.String()[len("SIGNAL_SOURCE_"):]
				if s.SeenTime != nil {
					text += fmt.Sprintf(" %v", s.SeenTime.AsTime().Sub(now()))
				}
				if s.ExpireTime != nil {
					text += fmt.Sprintf(" until %v", s.ExpireTime.AsTime().Sub(now()))
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("signals (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeHealthOf_SaysTheAgent(t *testing.T) {
	snapshot := &nodehealthcontroller.Snapshot{At: nodehealth.Moment{Instant: second(1000), Wall: now()}}
	probe := session.Agent{Name: "trivet-agent", Version: "v1", Mode: "probe"}
	for name, c := range map[string]struct {
		lease  *sessioncontroller.Lease
		result nodehealthcontroller.Result
		want   *leasev1.Lease_Agent
	}{
		"known":     {lease: &sessioncontroller.Lease{Agent: probe}, want: &leasev1.Lease_Agent{Name: "trivet-agent", Version: "v1", Mode: "probe"}},
		"not known": {lease: &sessioncontroller.Lease{}},
		"none":      {},
		"in a watch": {
			result: nodehealthcontroller.Result{Agent: unique.Make(probe)},
			want:   &leasev1.Lease_Agent{Name: "trivet-agent", Version: "v1", Mode: "probe"},
		},
	} {
		view := newNodeView(snapshot, &nodehealthcontroller.Node{Object: &corev1.Node{}, Result: c.result})
		view.lease = c.lease
		if got := (&Server{Config: Config{DryRun: func() bool { return false }}}).nodeHealthOf(&view).Agent; !proto.Equal(got, c.want) {
			t.Errorf("%s: agent %v, want %v", name, got, c.want)
		}
	}
}

func TestConditionsOf_HasOnlyThoseThatAreTrue(t *testing.T) {
	snapshot := &nodehealthcontroller.Snapshot{At: nodehealth.Moment{Instant: second(1000), Wall: now()}}
	hold := nodehealth.Delay{Reason: "APISERVER_DENIED", Message: "kube-apiserver refuses", Since: second(990)}
	got := conditionsOf(snapshot, namedHold{"EvictionSuspended", nodehealth.Delay{}}, namedHold{"MarkingSuspended", hold})
	if len(got) != 1 {
		t.Fatalf("conditions %v, want one", got)
	}
	c := got[0]
	text := fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason, " ", c.Message, " ", c.TransitionTime.AsTime().Sub(now()))
	if want := "MarkingSuspended STATUS_TRUE APISERVER_DENIED Kube-apiserver refuses. -10s"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
}
