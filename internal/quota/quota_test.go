package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/health/grpc_health_v1"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	_ "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// The table has every method that a server can register, and nothing else.
func TestMethods_HasAllMethodsOfTheAPI(t *testing.T) {
	api := map[string]bool{TokenReview: true}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), "trivet.") && !strings.HasPrefix(string(file.Package()), "grpc.") {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				api[fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(j).Name())] = true
			}
		}
		return true
	})
	api[UnknownMethod] = true
	want := slices.Sorted(maps.Keys(api))
	if len(want) < 40 {
		t.Fatalf("only %d methods are registered", len(want))
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(Methods()))); diff != "" {
		t.Errorf("the table differs from the API (-API +table):\n%s", diff)
	}
}

func TestCovers_NamesMethodsWithoutLimits(t *testing.T) {
	q := newQuota(t, Methods())
	if err := q.Covers(slices.Collect(maps.Keys(Methods()))); err != nil {
		t.Errorf("Covers(all methods) = %v, want nil", err)
	}
	err := q.Covers([]string{"/a/B", getLease, "/a/A"})
	if err == nil || !strings.Contains(err.Error(), "/a/A, /a/B") || strings.Contains(err.Error(), getLease) {
		t.Errorf("Covers() = %v, want the two unknown methods", err)
	}
}

func TestNew_RefusesLimitsThatAdmitNothing(t *testing.T) {
	for _, of := range []Limit{{Burst: 1, InFlight: 1}, {Rate: 1, InFlight: 1}, {Rate: 1, Burst: 1}} {
		if _, err := New(Table{"/a/A": of}, nil); err == nil {
			t.Errorf("New() accepts %+v", of)
		}
	}
}

const (
	getLease = "/trivet.lease.v1.LeaseService/GetLease"
	beat     = "/trivet.lease.v1.HeartbeatService/Heartbeat"
)

var two = Table{
	"/a/A": {Rate: 10, Burst: 3, InFlight: 2},
	"/a/B": {Rate: 10, Burst: 3, InFlight: 2, MaxBytes: 100},
	beat:   {CountedByHandler: true},
}

func newQuota(t testing.TB, table Table) *Quota {
	t.Helper()
	q, err := New(table, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// calls makes n calls that end at once, and returns how many are admitted.
func calls(q *Quota, caller Caller, method string, now time.Time, n int) (count int) {
	for range n {
		if slot, err := q.Admit(caller, method, now); err == nil {
			slot.Release()
			count++
		}
	}
	return count
}

func TestAdmit_LimitsRateAndBurst(t *testing.T) {
	q, now := newQuota(t, two), time.Now()
	if got := calls(q, User("a"), "/a/A", now, 10); got != 3 {
		t.Errorf("%d calls at once are admitted, want the burst of 3", got)
	}
	if got := calls(q, User("a"), "/a/B", now, 10); got != 3 {
		t.Errorf("%d calls of another method are admitted, want 3", got)
	}
	if got := calls(q, User("b"), "/a/A", now, 10); got != 3 {
		t.Errorf("%d calls of another user are admitted, want 3", got)
	}
	total := 0
	for range 100 { // two seconds, in steps of 20 ms
		now = now.Add(20 * time.Millisecond)
		total += calls(q, User("a"), "/a/A", now, 5)
	}
	if total != 20 {
		t.Errorf("%d calls in two seconds are admitted, want 20", total)
	}
	if got := calls(q, User("a"), "/a/A", now.Add(time.Minute), 10); got != 3 {
		t.Errorf("%d calls after a pause are admitted, want the burst of 3", got)
	}
}

func TestAdmit_RefusalSaysWhenToReturn(t *testing.T) {
	registry := prometheus.NewRegistry()
	q, err := New(two, registry)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	calls(q, User("a"), "/a/A", now, 3)
	_, err = q.Admit(User("a"), "/a/A", now)
	wait := rpcerror.RetryAfterOf(err)
	if status.Code(err) != codes.ResourceExhausted || rpcerror.ReasonOf(err) != "TOO_MANY_CALLS" || wait < 100*time.Millisecond || wait > 151*time.Millisecond {
		t.Errorf("Admit() = %v, retry after %v; want TOO_MANY_CALLS and a pause of 100 to 151 ms", err, wait)
	}
	if _, err := q.Admit(User("a"), "/a/A", now.Add(wait)); err != nil {
		t.Errorf("Admit() after the pause = %v, want nil", err)
	}
	if got := refusals(t, registry); !maps.Equal(got, map[string]float64{"a/A TOO_MANY_CALLS": 1}) {
		t.Errorf("refusals %v are counted, want one of a/A", got)
	}
}

// refusals returns the counted refusals, by method and reason.
func refusals(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "trivet_quota_refusals_total" {
				found[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return found
}

func TestAdmit_LimitsCallsInFlight(t *testing.T) {
	q, now := newQuota(t, two), time.Now()
	first, err := q.Admit(User("a"), "/a/A", now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Admit(User("a"), "/a/A", now); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour) // the rate is not the limit
	_, err = q.Admit(User("a"), "/a/A", now)
	if rpcerror.ReasonOf(err) != "TOO_MANY_CALLS_IN_FLIGHT" || rpcerror.RetryAfterOf(err) == 0 {
		t.Errorf("the third call in flight: %v, want TOO_MANY_CALLS_IN_FLIGHT with a pause", err)
	}
	if _, err := q.Admit(User("b"), "/a/A", now); err != nil {
		t.Errorf("the first call of another user: %v", err)
	}
	first.Release()
	if _, err := q.Admit(User("a"), "/a/A", now); err != nil {
		t.Errorf("a call after one ended: %v", err)
	}
}

func TestAdmit_PassesWhatIsCountedElsewhere(t *testing.T) {
	q, now := newQuota(t, two), time.Now()
	for name, c := range map[string]struct {
		quota  *Quota
		caller Caller
		method string
	}{
		"counted by the handler": {q, User("a"), beat},
		"unknown method":         {q, User("a"), "/a/C"},
		"no limits":              {q, Caller{}, "/a/A"},
		"no quota":               {nil, User("a"), "/a/A"},
	} {
		if got := calls(c.quota, c.caller, c.method, now, 100); got != 100 {
			t.Errorf("%s: %d of 100 calls are admitted", name, got)
		}
	}
}

func TestRefund_LeavesTheRateAsItWas(t *testing.T) {
	q, now := newQuota(t, two), time.Now()
	for i := range 100 {
		slot, err := q.Admit(Address("10.0.0.1:1"), "/a/A", now)
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		slot.Refund()
	}
	if got := calls(q, Address("10.0.0.1:1"), "/a/A", now, 100); got != calls(q, Address("10.0.0.2:1"), "/a/A", now, 100) {
		t.Errorf("%d further calls are admitted, want the burst of another caller", got)
	}
	Slot{}.Refund() // of a call that does not count
}

// fill gives every place of users to an identity with a call in flight.
func fill(t *testing.T, q *Quota, now time.Time) (slots []Slot) {
	t.Helper()
	for i := range MaxUsers {
		slot, err := q.Admit(User(fmt.Sprint("filler ", i)), "/a/A", now)
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, slot)
	}
	return slots
}

func TestAdmit_IdentitiesBeyondTheBoundShareOneMeter(t *testing.T) {
	q, now := newQuota(t, two), time.Now()
	calls(q, User("honest"), "/a/A", now, 3) // the whole burst
	slots := fill(t, q, now)[1:]             // "honest" keeps its place; the last filler shares
	total := 0
	for i := range 1000 {
		total += calls(q, User(fmt.Sprint("late ", i)), "/a/A", now, 3)
	}
	if total > 3 {
		t.Errorf("%d calls of a thousand late identities are admitted, want at most one burst", total)
	}
	if got := calls(q, User("honest"), "/a/A", now, 3); got != 0 {
		t.Errorf("a limited identity got %d calls because of the late ones", got)
	}
	if got := calls(q, Replica("trivet:gateway"), "/a/A", now, 3); got != 3 {
		t.Errorf("%d of 3 calls of a gateway are admitted", got)
	}
	if got := calls(q, Address("10.0.0.1:1"), "/a/A", now, 3); got != 3 {
		t.Errorf("%d of 3 calls of an address are admitted", got)
	}
	if len(q.users.order) != MaxUsers || len(q.users.accounts) != MaxUsers {
		t.Errorf("%d and %d users are kept, want %d", len(q.users.order), len(q.users.accounts), MaxUsers)
	}
	for _, slot := range slots {
		slot.Release()
	}
	if got := calls(q, User("late"), "/a/A", now.Add(time.Second), 3); got != 3 {
		t.Errorf("%d of 3 calls are admitted when others are idle", got)
	}
}

func TestAdmit_ForgetsOnlyIdleIdentities(t *testing.T) {
	q, now := newQuota(t, two), time.Now()
	for i := range 100_000 {
		now = now.Add(100 * time.Millisecond)
		calls(q, User(fmt.Sprint(i)), "/a/A", now, 1)
	}
	if kept := len(q.users.order); kept > 10 {
		t.Errorf("%d identities are kept, of which one is active", kept)
	}
	if got := calls(q, User("busy"), "/a/A", now, 3); got != 3 {
		t.Fatalf("%d of 3 calls are admitted", got)
	}
	for i := range 1000 {
		calls(q, User(fmt.Sprint("other ", i)), "/a/A", now, 1)
	}
	if got := calls(q, User("busy"), "/a/A", now, 3); got != 0 {
		t.Errorf("%d calls beyond the burst are admitted after others came", got)
	}
}

func TestCallerOf_CountsForTheOriginalCaller(t *testing.T) {
	gateway := authn.User{Name: "trivet:gateway", Groups: []string{certs.GatewayGroup}}
	for name, c := range map[string]struct {
		caller authn.Caller
		want   Caller
	}{
		"user":              {authn.Caller{User: authn.User{Name: "ann"}, Peer: authn.User{Name: "ann"}, Address: "10.0.0.1:7"}, User("ann")},
		"forwarded":         {authn.Caller{User: authn.User{Name: "ann"}, Peer: gateway, Role: authn.Gateway, Forwarded: true}, User("ann")},
		"gateway":           {authn.Caller{User: gateway, Peer: gateway, Role: authn.Gateway}, Replica("trivet:gateway")},
		"server":            {authn.Caller{User: authn.User{Name: "trivet:leasesvc"}, Role: authn.Server}, Replica("trivet:leasesvc")},
		"anonymous":         {authn.Caller{User: authn.Anonymous(), Address: "10.0.0.1:7"}, Address("10.0.0.1:9")},
		"IPv4 in IPv6":      {authn.Caller{User: authn.Anonymous(), Address: "[::ffff:10.0.0.1]:7"}, Address("10.0.0.1")},
		"neighbour in IPv6": {authn.Caller{User: authn.Anonymous(), Address: "[2001:db8::1]:7"}, Address("[2001:db8::2]:7")},
		"no address":        {authn.Caller{User: authn.Anonymous(), Address: "bufconn"}, Address("")},
		"unchecked":         {authn.Caller{User: authn.Anonymous(), Unchecked: true}, Caller{}},
	} {
		if got := CallerOf(&c.caller); got != c.want {
			t.Errorf("%s: CallerOf() = %v, want %v", name, got, c.want)
		}
	}
	if Address("10.0.0.1:1") == Address("10.0.0.2:1") || Address("[2001:db8::1]:1") == Address("[2001:db8:0:1::1]:1") || User("a") == Replica("a") {
		t.Error("different callers are equal")
	}
}

func TestTooLarge_NamesTheLimit(t *testing.T) {
	q := newQuota(t, two)
	for name, want := range map[string]int{"/a/A": 0, "/a/B": 100} {
		if limit, batched := q.MaxBytes(name); limit != want || batched {
			t.Errorf("MaxBytes(%s) = %d, %t, want %d", name, limit, batched, want)
		}
	}
	for _, c := range []struct {
		size, limit int
		want        string
	}{
		{101, 100, "101 bytes; a/B takes 100"}, {90, 100, "too many items"},
		{101, 1000, "too many items"}, // of a caller that batches
	} {
		err := q.TooLarge("/a/B", c.size, c.limit)
		if rpcerror.ReasonOf(err) != "MESSAGE_TOO_LARGE" || status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), c.want) {
			t.Errorf("TooLarge(%d, %d) = %v, want MESSAGE_TOO_LARGE with %q", c.size, c.limit, err, c.want)
		}
	}
}

func TestAdmit_AllocatesNothing(t *testing.T) {
	q, caller := newQuota(t, Methods()), &authn.Caller{User: authn.User{Name: "system:node:a"}}
	now := time.Now()
	if allocations := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Second)
		slot, err := q.Admit(CallerOf(caller), getLease, now)
		if err != nil {
			t.Error(err)
		}
		slot.Release()
	}); allocations != 0 {
		t.Errorf("%v allocations for each call", allocations)
	}
}

func BenchmarkAdmit(b *testing.B) {
	for name, c := range map[string]struct {
		caller authn.Caller
		method string
	}{
		"user":                   {authn.Caller{User: authn.User{Name: "system:node:node-1234"}}, getLease},
		"address":                {authn.Caller{User: authn.Anonymous(), Address: "10.0.0.1:40000"}, "/grpc.health.v1.Health/Check"},
		"counted by the handler": {authn.Caller{User: authn.User{Name: "system:node:node-1234"}}, beat},
	} {
		b.Run(name, func(b *testing.B) {
			q, now := newQuota(b, Methods()), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Second)
				slot, err := q.Admit(CallerOf(&c.caller), c.method, now)
				if err != nil {
					b.Fatal(err)
				}
				slot.Release()
			}
		})
	}
}
