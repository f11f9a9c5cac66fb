package api

import (
	"strings"
	"testing"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func TestAgent_IsThatOfTheLastRegistration(t *testing.T) {
	f := newFixture(t, setup{})
	register := func(info *metav1.ClientInfo, boot string) session.Agent {
		t.Helper()
		h := holders(0, 1)[0]
		h.BootId = boot
		f.open(t).send(&leasev1.StreamHeartbeatsRequest{Sequence: 1, ClientInfo: info, Registrations: []*leasev1.Registration{{Holder: h}}})
		lease, found := f.lease(h.Name)
		if !found {
			t.Fatal("no lease")
		}
		return lease.Agent
	}
	want := session.Agent{Name: "trivet-agent", Version: "v1", Mode: "probe"}
	if got := register(&metav1.ClientInfo{Agent: "trivet-agent", Version: "v1", Mode: "probe"}, "b-1"); got != want {
		t.Errorf("agent %+v, want %+v", got, want)
	}
	if got := register(nil, "b-1"); got != want {
		t.Errorf("agent %+v after a registration that does not say, want %+v", got, want)
	}
	want.Mode = "endpoint"
	if got := register(&metav1.ClientInfo{Agent: "trivet-agent", Version: "v1", Mode: "endpoint"}, "b-1"); got != want {
		t.Errorf("agent %+v, want %+v", got, want)
	}
	if got := register(nil, "b-2"); got != (session.Agent{}) {
		t.Errorf("agent %+v of the former boot", got)
	}
	long := register(&metav1.ClientInfo{Agent: "\x1b[31m" + strings.Repeat("ä", 1000)}, "b-2").Name
	if long != "[31m"+strings.Repeat("ä", maxAgentText-4) {
		t.Errorf("a hostile name is kept as %q", long)
	}
}
