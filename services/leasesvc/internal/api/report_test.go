package api

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// rounding is how much later than it was received a beat may count.
const rounding = time.Millisecond

func observedAgo(age time.Duration) *leasev1.Report {
	return &leasev1.Report{ObservedAge: durationpb.New(age)}
}

// expectEnd sends a message that ends the stream.
func (c *client) expectEnd(what string, request *leasev1.StreamHeartbeatsRequest, code codes.Code, reason rpcerror.Reason) {
	c.t.Helper()
	err := c.respond(c.t.Context(), request)
	if status.Code(err) != code || rpcerror.ReasonOf(err) != reason {
		c.t.Errorf("%s: %v, want %v %s", what, err, code, reason)
	}
}

func TestReport_ShortensTheGrantOfItsMessage(t *testing.T) {
	f := newFixture(t, setup{})
	c := f.open(t)
	registered := c.send(&leasev1.StreamHeartbeatsRequest{Sequence: 1, Registrations: []*leasev1.Registration{
		{Holder: holders(0, 1)[0], Report: observedAgo(15 * time.Second)}, {Holder: holders(1, 1)[0]},
	}}).RegistrationResults
	silent, alive := registered[0].GetGrant().GetTtl().AsDuration(), registered[1].GetGrant().GetTtl().AsDuration()
	if silent > 5*time.Second+rounding || silent < 4*time.Second || alive != 20*time.Second {
		t.Errorf("a holder that was observed 15 s ago has %v, and another one %v", silent, alive)
	}
	grants := len(c.grants)
	both := c.send(&leasev1.StreamHeartbeatsRequest{
		Sequence: 2, Handles: []uint32{2}, Reports: []*leasev1.HandleReport{{Handle: 1, Report: observedAgo(16 * time.Second)}},
	}).GetGrant()
	if ttl := both.GetTtl().AsDuration(); ttl > silent || ttl < 4*time.Second || both.GetNextInterval().AsDuration() != 5*time.Second {
		t.Errorf("the grant of both is %v, want the shorter TTL", both)
	}
	if got := c.report(1, observedAgo(time.Second)).GetGrant().GetTtl().AsDuration(); got > 19*time.Second+rounding || got < 18*time.Second {
		t.Errorf("a holder that was observed a second ago has %v", got)
	}
	if got := c.report(1, &leasev1.Report{}).GetGrant().GetTtl().AsDuration(); got != 20*time.Second {
		t.Errorf("a holder that was observed just now has %v", got)
	}
	if len(c.grants) != grants {
		t.Errorf("the stream keeps %d grants after reports, %d before", len(c.grants), grants)
	}
}

func TestReport_OlderThanTheLastBeatMovesNothing(t *testing.T) {
	f := newFixture(t, setup{})
	c := f.open(t)
	c.register(holders(0, 1)...)
	before, _ := f.lease("node-0")
	time.Sleep(2 * rounding)
	grant := c.report(1, observedAgo(10*time.Second)).GetGrant()
	after, _ := f.lease("node-0")
	if moved := after.ObserveTime.Sub(before.ObserveTime).Abs(); moved > rounding || grant.GetTtl().AsDuration() < 19*time.Second {
		t.Errorf("the last beat moved by %v, and the grant is %v", moved, grant)
	}
	if after.LastReportTime.Sub(before.ObserveTime) <= 0 || after.State != session.Alive {
		t.Errorf("last report at %v, last beat at %v, %v", after.LastReportTime, after.ObserveTime, after.State)
	}
}

func TestReport_ConditionsAreShownInTheLease(t *testing.T) {
	f := newFixture(t, setup{})
	c := f.open(t)
	c.register(holders(0, 1)...)
	c.report(1, &leasev1.Report{Conditions: []*leasev1.ReportedCondition{
		{Type: "DiskPressure", Status: metav1.Condition_STATUS_TRUE, Reason: "DISK_FULL", Message: "9 of 10 GB", TransitionAge: durationpb.New(time.Minute)},
		{Type: "Cordoned", Status: 77},
	}})
	c.beatHandles(1)
	c.report(1, nil) // as a bare handle
	lease, _ := f.lease("node-0")
	if len(lease.Conditions) != 2 || lease.Conditions[0].Type != "Cordoned" || lease.Conditions[0].Status != 0 || !lease.Conditions[0].TransitionTime.IsZero() {
		t.Fatalf("conditions %+v", lease.Conditions)
	}
	disk := lease.Conditions[1]
	if disk.Status != 1 || disk.Reason != "DISK_FULL" || disk.Message != "9 of 10 GB" || time.Since(disk.TransitionTime).Round(time.Second) != time.Minute {
		t.Errorf("condition %+v", disk)
	}
	c.report(1, &leasev1.Report{})
	if lease, _ = f.lease("node-0"); lease.Conditions != nil {
		t.Errorf("conditions %+v after a report without any", lease.Conditions)
	}
}

func TestReport_CutOffIsShownInTheLease(t *testing.T) {
	f := newFixture(t, setup{})
	c := f.open(t)
	c.register(holders(0, 1)...)
	c.report(1, &leasev1.Report{CutOffAge: durationpb.New(time.Minute)})
	c.beatHandles(1)
	c.report(1, nil) // as a bare handle
	lease, _ := f.lease("node-0")
	if ago := time.Since(lease.CutOffTime).Round(time.Second); ago != time.Minute {
		t.Errorf("cut off since %v ago, want a minute", ago)
	}
	if shown := (&leaseServer{Server: f.server}).leaseOf(&lease).CutOffTime; !shown.AsTime().Equal(lease.CutOffTime.Truncate(0)) {
		t.Errorf("the API shows %v, want %v", shown.AsTime(), lease.CutOffTime)
	}
	c.report(1, &leasev1.Report{})
	if lease, _ = f.lease("node-0"); !lease.CutOffTime.IsZero() {
		t.Errorf("cut off since %v after a report without it", lease.CutOffTime)
	}
}

func TestReport_OneBeatForEachHandle(t *testing.T) {
	f := newFixture(t, setup{})
	report := func(handles ...uint32) (reports []*leasev1.HandleReport) {
		for _, handle := range handles {
			reports = append(reports, &leasev1.HandleReport{Handle: handle, Report: observedAgo(time.Minute)})
		}
		return reports
	}
	for what, c := range map[string]struct {
		request *leasev1.StreamHeartbeatsRequest
		reason  rpcerror.Reason
	}{
		"a handle and its report":         {&leasev1.StreamHeartbeatsRequest{Handles: []uint32{2, 1}, Reports: report(1)}, "VALIDATION_FAILED"},
		"two reports of a handle":         {&leasev1.StreamHeartbeatsRequest{Reports: report(2, 1, 2)}, "VALIDATION_FAILED"},
		"report of a handle never given":  {&leasev1.StreamHeartbeatsRequest{Reports: report(3)}, "UNKNOWN_HANDLE"},
		"report without a handle":         {&leasev1.StreamHeartbeatsRequest{Reports: report(0)}, "UNKNOWN_HANDLE"},
		"report that breaks a rule":       {&leasev1.StreamHeartbeatsRequest{Reports: []*leasev1.HandleReport{{Handle: 1, Report: observedAgo(-1)}}}, "VALIDATION_FAILED"},
		"registration that breaks a rule": {&leasev1.StreamHeartbeatsRequest{Registrations: []*leasev1.Registration{{Holder: holders(3, 1)[0], Report: observedAgo(-1)}}}, "VALIDATION_FAILED"},
	} {
		stream := f.open(t)
		stream.register(holders(0, 2)...)
		c.request.Sequence = 2
		stream.expectEnd(what, c.request, codes.InvalidArgument, c.reason)
	}
}

func TestClientInfo_AnotherClusterIsRejected(t *testing.T) {
	f := newFixture(t, setup{})
	message := func(sequence uint64, cluster string) *leasev1.StreamHeartbeatsRequest {
		return &leasev1.StreamHeartbeatsRequest{
			Sequence: sequence, Registrations: registrations(holders(0, 1)), ClientInfo: &metav1.ClientInfo{Cluster: cluster},
		}
	}
	f.open(t).expectEnd("another cluster", message(1, "cluster-2"), codes.FailedPrecondition, "WRONG_CLUSTER")
	if _, found := f.lease("node-0"); found {
		t.Error("a client of another cluster registered a holder")
	}
	for _, cluster := range []string{"", "cluster-1"} {
		c := f.open(t)
		c.send(message(1, cluster))
		c.send(message(2, "cluster-2")) // read from the first message only
	}
	beats := &leasev1.HeartbeatRequest{Beats: []*leasev1.Beat{{Holder: holders(0, 1)[0], Sequence: 9}}, ClientInfo: &metav1.ClientInfo{Cluster: "cluster-2"}}
	if _, err := f.beat(t, unchecked(), beats); status.Code(err) != codes.FailedPrecondition || rpcerror.ReasonOf(err) != "WRONG_CLUSTER" {
		t.Errorf("heartbeat of another cluster: %v", err)
	}
	beats.ClientInfo.Cluster = "cluster-1"
	response, err := f.beat(t, unchecked(), beats)
	if err != nil || response.ServerInfo.GetCluster() != "cluster-1" || response.ServerInfo.GetReplicaId() != "replica-1" || response.ServerInfo.GetVersion() != "v1.2.3" {
		t.Errorf("server info %v, error %v", response.GetServerInfo(), err)
	}
}

func TestStreamLimits_AreThoseThatAreEnforced(t *testing.T) {
	f := newFixture(t, setup{maxMessages: 17, maxRegistrations: unlimited})
	limits := f.open(t).limits()
	if limits.MessagesPerSecond != 0 {
		t.Errorf("a client without a certificate has the limit %v", limits)
	}
	if got := f.openAs(t, node("node-1")).limits().MessagesPerSecond; got != 17 {
		t.Errorf("%v messages per second, want 17", got)
	}
	n := int(limits.RegistrationsPerMessage)
	f.open(t).expectEnd("too many in a message", &leasev1.StreamHeartbeatsRequest{Sequence: 1, Registrations: registrations(holders(0, n+1))},
		codes.InvalidArgument, "VALIDATION_FAILED")
	c := f.open(t)
	for range int(limits.RegistrationsPerStream) / n {
		c.register(holders(0, n)...)
	}
	c.expectEnd("too many on the stream", &leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Registrations: registrations(holders(0, 1))},
		codes.ResourceExhausted, "TOO_MANY_HOLDERS")
	c.expectEnd("too many handles", &leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Handles: make([]uint32, limits.HandlesPerMessage+1)},
		codes.InvalidArgument, "VALIDATION_FAILED")
}

func TestRespond_BareHandlesAllocateNothing(t *testing.T) {
	f := newFixture(t, setup{})
	c := f.open(t)
	c.register(holders(0, 64)...)
	request := beatsOf(64)
	if allocations := testing.AllocsPerRun(1000, func() { c.renew(request) }); allocations != 0 {
		t.Errorf("%v allocations for a message of 64 bare handles", allocations)
	}
}

func beatsOf(n int) *leasev1.StreamHeartbeatsRequest {
	request := &leasev1.StreamHeartbeatsRequest{Sequence: 1}
	for i := range n {
		request.Handles = append(request.Handles, uint32(i+1))
	}
	return request
}

// renew sends a message as the stream does.
func (c *client) renew(request *leasev1.StreamHeartbeatsRequest) {
	request.Sequence++
	c.send(request)
	c.releaseMemory()
}

func BenchmarkRespond_OneBareHandle(b *testing.B)  { benchmarkRespond(b, 1) }
func BenchmarkRespond_64BareHandles(b *testing.B)  { benchmarkRespond(b, 64) }
func BenchmarkRespond_256BareHandles(b *testing.B) { benchmarkRespond(b, 256) }

func benchmarkRespond(b *testing.B, n int) {
	c := newFixture(b, setup{}).open(b)
	c.register(holders(0, n)...)
	request := beatsOf(n)
	b.ReportAllocs()
	for b.Loop() {
		c.renew(request)
	}
}

func BenchmarkRespond_64Reports(b *testing.B) {
	c := newFixture(b, setup{}).open(b)
	c.register(holders(0, 64)...)
	request := &leasev1.StreamHeartbeatsRequest{Sequence: 1}
	for i := range 64 {
		request.Reports = append(request.Reports, &leasev1.HandleReport{Handle: uint32(i + 1), Report: observedAgo(time.Second)})
	}
	b.ReportAllocs()
	for b.Loop() {
		c.renew(request)
	}
}

func TestHeartbeat_ReportsAsOnAStream(t *testing.T) {
	f := newFixture(t, setup{})
	beat := func(sequence uint64, name string, report *leasev1.Report) *leasev1.HeartbeatResult {
		t.Helper()
		response, err := f.beat(t, unchecked(), &leasev1.HeartbeatRequest{Beats: []*leasev1.Beat{
			{Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "1"}, Sequence: sequence, Report: report},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return response.Results[0]
	}
	report := observedAgo(15 * time.Second)
	report.Conditions = []*leasev1.ReportedCondition{{Type: "DiskPressure", Status: metav1.Condition_STATUS_TRUE}}
	if ttl := beat(5, "node-0", report).GetGrant().GetTtl().AsDuration(); ttl > 5*time.Second+rounding || ttl < 4*time.Second {
		t.Errorf("a holder that was observed 15 s ago has %v", ttl)
	}
	beat(5, "node-0", &leasev1.Report{}) // repeated
	lease, _ := f.lease("node-0")
	if ago := time.Since(lease.ObserveTime).Round(time.Second); ago != 15*time.Second || len(lease.Conditions) != 1 || lease.LastReportTime.IsZero() {
		t.Errorf("observed %v ago, lease %+v", ago, lease)
	}
	beat(6, "node-0", nil)
	if lease, _ = f.lease("node-0"); time.Since(lease.ObserveTime) > time.Second || len(lease.Conditions) != 1 || !lease.LastReportTime.IsZero() {
		t.Errorf("after a beat without a report: %+v", lease)
	}
}
