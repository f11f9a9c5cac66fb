package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
)

const agentAccount = "trivet-system/trivet-agent"

// token returns the caller with a token that is bound to a node.
func token(account, nodeName string) *authn.Caller {
	user := authn.User{
		Name: "system:serviceaccount:" + strings.ReplaceAll(account, "/", ":"), Groups: []string{"system:serviceaccounts", authn.AuthenticatedGroup},
		Extra: map[string][]string{nodeNameExtra: {nodeName}},
	}
	return &authn.Caller{User: user, Peer: user, Credential: authn.Token}
}

// auditRecords keeps what is written.
type auditRecords struct {
	mu      sync.Mutex // guards records
	records []audit.Record
}

func (a *auditRecords) Write(r audit.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records = append(a.records, r)
}

// reviewer answers reviews and counts them.
type reviewer struct {
	reviews atomic.Int64
	answer  func(user authn.User, asked authz.Attributes) (authz.Decision, error)
}

func (r *reviewer) Review(_ context.Context, user authn.User, asked authz.Attributes) (authz.Decision, error) {
	r.reviews.Add(1)
	return r.answer(user, asked)
}

// expectRefused checks that the result of a beat is NOT_AUTHORIZED.
func expectRefused(t testing.TB, what string, rejection *leasev1.Rejection) {
	t.Helper()
	if rejection.GetReason() != "NOT_AUTHORIZED" || codes.Code(rejection.GetCode()) != codes.PermissionDenied {
		t.Errorf("%s: %v, want NOT_AUTHORIZED", what, rejection)
	}
}

// The attack: with one stolen certificate of a node, one call names 1,000 nodes with a new boot.
func TestHeartbeat_AStolenCertificateTakesOverItsOwnNodeOnly(t *testing.T) {
	const nodes = 1000
	f := newFixture(t, setup{maxRegistrations: unlimited})
	records := &auditRecords{}
	f.server.Audit = records
	agents := make([]*client, nodes)
	for i := range agents {
		agents[i] = f.openAs(t, node(fmt.Sprintf("node-%d", i)))
		if result := agents[i].register(holders(i, 1)...).RegistrationResults[0]; result.Handle != 1 {
			t.Fatalf("node-%d is not registered: %v", i, result)
		}
	}
	attack := holders(0, nodes)
	for _, h := range attack {
		h.BootId = "stolen"
	}
	response, err := f.beat(t, node("node-0"), unary(1, attack))
	if err != nil {
		t.Fatal(err)
	}
	for i, result := range response.Results[1:] {
		expectRefused(t, fmt.Sprintf("node-%d", i+1), result.GetRejection())
	}
	if want := `user "system:node:node-0" may not beat for holder "node-7" of class "node"; only this may: user "system:node:node-7" in group "system:nodes"`; response.Results[7].GetRejection().GetMessage() != want {
		t.Errorf("message %q, want %q", response.Results[7].GetRejection().GetMessage(), want)
	}
	for i, a := range agents[1:] {
		answer := a.beatHandles(1)
		if len(answer.RejectedHandles) > 0 || answer.Grant == nil {
			t.Fatalf("node-%d is told %v", i+1, answer.RejectedHandles)
		}
		if lease, found := f.lease(fmt.Sprintf("node-%d", i+1)); !found || lease.Holder.Boot != "7c1e6f0e-boot" {
			t.Fatalf("node-%d has %+v", i+1, lease.Holder)
		}
	}
	// Its own node is taken over, as after a reboot.
	if lease, _ := f.lease("node-0"); lease.Holder.Boot != "stolen" || response.Results[0].GetGrant() == nil {
		t.Errorf("the own node: %v, boot %q", response.Results[0], lease.Holder.Boot)
	}
	if n := len(records.records); n != 2 || records.records[0].Decision != audit.Denied || records.records[1].Decision != audit.Allowed ||
		!strings.Contains(records.records[0].DecisionReason, "and 998 more items") || records.records[0].Object != "namespaces/kube-node-lease/leases/node-1" {
		t.Errorf("%d records: %+v; want one of the refused items and one of the takeover", n, records.records)
	}
}

func TestStreamHeartbeats_ARefusedRegistrationRefusesNoOther(t *testing.T) {
	f := newFixture(t, setup{agents: []string{agentAccount}})
	for name, caller := range map[string]*authn.Caller{"certificate": node("node-1"), "token": token(agentAccount, "node-1")} {
		t.Run(name, func(t *testing.T) {
			c := f.openAs(t, caller)
			results := c.register(holders(0, 3)...).RegistrationResults
			expectRefused(t, "node-0", results[0].GetRejection())
			expectRefused(t, "node-2", results[2].GetRejection())
			if results[1].Handle != 1 || results[1].GetGrant() == nil {
				t.Errorf("the own node: %v", results[1])
			}
			if c.beatHandles(1).Grant == nil {
				t.Error("the own node does not beat")
			}
			for _, other := range []string{"node-0", "node-2"} {
				if lease, found := f.lease(other); found {
					t.Errorf("%s has the lease %+v", other, lease)
				}
			}
		})
	}
}

func TestHeartbeat_OnlyTheIdentityOfTheNodeMayBeat(t *testing.T) {
	f := newFixture(t, setup{agents: []string{agentAccount}, furtherClasses: []class.Class{closedClass()}})
	gateway := node("node-1")
	gateway.Peer, gateway.Role, gateway.Forwarded = authn.User{Name: "trivet:gateway"}, authn.Gateway, true
	twoNodes := token(agentAccount, "node-1")
	twoNodes.User.Extra[nodeNameExtra] = []string{"node-1", "node-2"}
	server := certified("trivet:leasesvc", certs.ServerGroup)
	server.Role = authn.Server
	for name, c := range map[string]struct {
		caller *authn.Caller
		class  string
		want   bool
	}{
		"own node":                    {node("node-1"), "node", true},
		"other node":                  {node("node-2"), "node", false},
		"without the group":           {certified("system:node:node-1"), "node", false},
		"token of the node":           {token(agentAccount, "node-1"), "node", true},
		"token of another node":       {token(agentAccount, "node-2"), "node", false},
		"token of another account":    {token("default/other", "node-1"), "node", false},
		"token of two nodes":          {twoNodes, "node", false},
		"administrator":               {certified("admin", "system:masters"), "node", false},
		"server for itself":           {server, "node", false},
		"gateway for the node":        {gateway, "node", false},
		"anonymous":                   {&authn.Caller{User: authn.Anonymous(), Peer: authn.Anonymous()}, "node", false},
		"class without a rule":        {node("node-1"), "closed", false},
		"--insecure":                  {unchecked(), "node", true},
		"--insecure, without a rule":  {unchecked(), "closed", true},
		"stale token of the own node": {&authn.Caller{User: token(agentAccount, "node-1").User, Stale: true}, "node", true},
	} {
		h := &leasev1.Holder{Class: c.class, Name: "node-1", BootId: "b"}
		response, err := f.beat(t, c.caller, unary(1, []*leasev1.Holder{h}))
		switch {
		case err != nil && c.want:
			t.Errorf("%s: %v", name, err)
		case err != nil: // it may beat for no holder
			if rpcerror.ReasonOf(err) != rpcerror.NotAuthorizedReason || status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: %v, want %s", name, err, rpcerror.NotAuthorizedReason)
			}
		case !c.want:
			expectRefused(t, name, response.Results[0].GetRejection())
		case response.Results[0].GetGrant() == nil:
			t.Errorf("%s: %v", name, response.Results[0])
		}
	}
}

func closedClass() class.Class {
	c := class.DefaultNode()
	c.Name, c.Namespace, c.OwnedByNode, c.HolderRule = "closed", "closed", false, class.HolderRule{}
	return c
}

// A refused caller learns nothing of the lease.
func TestReleaseLease_RefusesOthersWhateverTheLeaseIs(t *testing.T) {
	f := newFixture(t, setup{})
	records := &auditRecords{}
	f.server.Audit = records
	f.openAs(t, node("node-0")).register(holders(0, 1)...)
	release := func(caller *authn.Caller, h *leasev1.Holder) error {
		_, err := f.server.ReleaseLease(as(t, caller), &leasev1.ReleaseLeaseRequest{Holder: h, ValidateOnly: true})
		return err
	}
	exists, absent, otherBoot := holders(0, 1)[0], holders(9, 1)[0], holders(0, 1)[0]
	otherBoot.BootId = "other"
	var texts []string
	for _, h := range []*leasev1.Holder{exists, absent, otherBoot} {
		err := release(node("node-5"), h)
		if status.Code(err) != codes.PermissionDenied || rpcerror.ReasonOf(err) != "NOT_AUTHORIZED" {
			t.Errorf("%v: %v, want NOT_AUTHORIZED", h, err)
		}
		texts = append(texts, strings.ReplaceAll(err.Error(), h.Name, "NAME"))
	}
	if texts[0] != texts[1] || texts[0] != texts[2] {
		t.Errorf("the refusals differ: %q", texts)
	}
	if err := release(node("node-0"), exists); err != nil {
		t.Errorf("the own node: %v", err)
	}
	if len(records.records) != 3 || records.records[0].Decision != audit.Denied {
		t.Errorf("records %+v, want three denials", records.records)
	}
}

// A node needs no right to do this all the time: the audit log limits these records.
func TestAudit_ANodeThatChangesItsBootAndReleasesWritesRepeatableRecords(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: unlimited})
	records := &auditRecords{}
	f.server.Audit = records
	agent := f.openAs(t, node("node-0"))
	h := holders(0, 1)[0]
	for i := range 5 {
		h.BootId = fmt.Sprint("boot-", i)
		agent.register(h)
	}
	if _, err := f.server.ReleaseLease(as(t, node("node-0")), &leasev1.ReleaseLeaseRequest{Holder: h, Etag: "older"}); err == nil {
		t.Fatal("a release with the etag of another state succeeds")
	}
	if n := len(records.records); n != 5 {
		t.Errorf("%d records, want four takeovers and a failed release: %+v", n, records.records)
	}
	for _, record := range records.records {
		if record.Decision != audit.Allowed || !record.Repeatable {
			t.Errorf("record %+v is not limited", record)
		}
	}
}

// reviewedClass is a class whose holders belong to those that kube-apiserver allows.
func reviewedClass() class.Class {
	c := closedClass()
	c.Name, c.Namespace, c.HolderRule = "sidecar", "sidecars", class.HolderRule{Type: class.RuleAccessReview}
	return c
}

func sidecars(first, n int) []*leasev1.Holder {
	list := holders(first, n)
	for _, h := range list {
		h.Class = "sidecar"
	}
	return list
}

func TestStreamHeartbeats_AReviewDecidesOncePerMessageAndNeverPerBeat(t *testing.T) {
	down := errors.New("connection refused")
	var answer error
	r := &reviewer{answer: func(user authn.User, asked authz.Attributes) (authz.Decision, error) {
		if want := (authz.Attributes{Verb: "update", Resource: "holders", Namespace: "sidecars", Name: "sidecar"}); asked != want {
			t.Errorf("asked %+v, want %+v", asked, want)
		}
		return authz.Decision{Allowed: user.Name == "alice", Reason: "no rule"}, answer
	}}
	f := newFixture(t, setup{furtherClasses: []class.Class{reviewedClass()}, authorizer: authz.New(r)})
	c := f.openAs(t, certified("alice"))
	for i, result := range c.register(sidecars(0, 100)...).RegistrationResults {
		if result.Handle == 0 {
			t.Fatalf("holder %d: %v", i, result)
		}
	}
	if n := r.reviews.Load(); n != 1 {
		t.Errorf("%d reviews for one message, want 1", n)
	}
	request := &leasev1.StreamHeartbeatsRequest{Handles: []uint32{1, 2, 3, 50, 100}}
	allocations := testing.AllocsPerRun(1000, func() {
		request.Sequence = c.sequence + 1
		if err := c.respond(t.Context(), request); err != nil || len(c.response.RejectedHandles) > 0 {
			t.Fatalf("beat: %v, %v", err, c.response.RejectedHandles)
		}
	})
	if n := r.reviews.Load(); n != 1 || allocations > 0 {
		t.Errorf("1,000 beats took %d reviews and %v allocations each, want none", n-1, allocations)
	}

	refused := f.openAs(t, certified("bob")).register(sidecars(200, 1)...).RegistrationResults[0].GetRejection()
	expectRefused(t, "bob", refused)
	if !strings.Contains(refused.Message, "kubectl auth can-i update holders.trivet.dev/sidecar -n sidecars --as bob") {
		t.Errorf("message %q, want the command that shows the refusal", refused.Message)
	}
	// While kube-apiserver is away, the last positive answer counts, and nothing else.
	answer = down
	if result := f.openAs(t, certified("alice")).register(sidecars(0, 1)...).RegistrationResults[0]; result.Handle == 0 {
		t.Errorf("alice returns while kube-apiserver is away: %v", result)
	}
	for _, name := range []string{"bob", "carol"} {
		rejection := f.openAs(t, certified(name)).register(sidecars(200, 1)...).RegistrationResults[0].GetRejection()
		if rejection.GetReason() != "ACCESS_REVIEW_UNAVAILABLE" || codes.Code(rejection.GetCode()) != codes.Unavailable || rejection.GetRetryAfter().AsDuration() <= 0 {
			t.Errorf("%s: %v, want ACCESS_REVIEW_UNAVAILABLE with a pause", name, rejection)
		}
	}
}

func TestKeptReviews_AreBoundedAndEnd(t *testing.T) {
	k := &keptReviews{}
	down := status.Error(codes.Unavailable, "down")
	of := func(i int) *authn.Caller { return certified(fmt.Sprint("user-", i)) }
	for i := range maxKeptReviews + 10 {
		if err := k.result(of(i), 1, nil, start); err != nil {
			t.Fatal(err)
		}
	}
	if len(k.allowed) != maxKeptReviews {
		t.Errorf("%d reviews are kept, want %d at most", len(k.allowed), maxKeptReviews)
	}
	k = &keptReviews{}
	_ = k.result(of(1), 1, nil, start)
	if err := k.result(of(1), 1, down, start.Add(keptReviewAge-1)); err != nil {
		t.Errorf("a kept answer: %v", err)
	}
	if k.result(of(1), 1, down, start.Add(keptReviewAge)) == nil || k.result(of(1), 2, down, start) == nil || k.result(certified("user-1", "g"), 1, down, start) == nil {
		t.Error("an old answer, one for another class or one for other groups counts")
	}
	// A client that does not wait for the review of a slow kube-apiserver loses nothing.
	_ = k.result(of(1), 1, context.DeadlineExceeded, start)
	if err := k.result(of(1), 1, down, start); err != nil {
		t.Errorf("after a call that ended early: %v, want the kept answer", err)
	}
	_ = k.result(certified("a", "b"), 1, nil, start)
	if split := certified("a\nb"); k.result(split, 1, down, start) == nil {
		t.Error("the answer for a user in a group counts for a user with both in its name")
	}
	refused := status.Error(codes.PermissionDenied, "no")
	if k.result(of(1), 1, refused, start) == nil || k.result(of(1), 1, down, start) == nil {
		t.Error("a refusal leaves the answer before it")
	}
}

func TestSessions_OneIdentityOpensABoundedNumberOfUnownedLeases(t *testing.T) {
	r := &reviewer{answer: func(authn.User, authz.Attributes) (authz.Decision, error) { return authz.Decision{Allowed: true}, nil }}
	f := newFixture(t, setup{furtherClasses: []class.Class{reviewedClass()}, authorizer: authz.New(r), maxLeasesPerIdentity: 10})
	c := f.openAs(t, certified("alice"))
	refused := 0
	for _, result := range c.register(sidecars(0, 15)...).RegistrationResults {
		if why := result.GetRejection(); why != nil {
			if refused++; why.Reason != "TOO_MANY_HOLDERS" || why.RetryAfter == nil {
				t.Errorf("refused with %v", why)
			}
		}
	}
	if refused != 5 {
		t.Errorf("%d of 15 holders were refused, want 5", refused)
	}
	for _, result := range c.register(sidecars(0, 10)...).RegistrationResults {
		if result.GetGrant() == nil {
			t.Errorf("a holder with a lease: %v", result)
		}
	}
	response, err := f.beat(t, certified("alice"), unary(1, sidecars(20, 1)))
	if err != nil || response.Results[0].GetRejection().GetReason() != "TOO_MANY_HOLDERS" {
		t.Errorf("by a call: %v, %v", response, err)
	}
	if result := f.openAs(t, certified("bob")).register(sidecars(30, 1)...).RegistrationResults[0]; result.GetGrant() == nil {
		t.Errorf("another identity: %v", result)
	}
	// A beat that another replica forwards counts for the identity that sent it there.
	forwarded := &leasev1.ForwardHeartbeatsRequest{ReplicaId: "r2", Beats: []*leasev1.ForwardedBeat{
		{Beat: &leasev1.Beat{Holder: sidecars(40, 1)[0], Sequence: 1}, OpenedBy: "alice"},
		{Beat: &leasev1.Beat{Holder: sidecars(41, 1)[0], Sequence: 1}, OpenedBy: "carol"},
	}}
	got, err := f.server.ForwardHeartbeats(t.Context(), forwarded)
	if err != nil || got.Results[0].GetRejection().GetReason() != "TOO_MANY_HOLDERS" || got.Results[1].GetGrant() == nil {
		t.Errorf("forwarded: %v, %v", got, err)
	}
}

// One identity that registers as fast as it can keeps out no other.
func TestRegistrations_OneIdentityUsesAShareOnly(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: 40, agents: []string{agentAccount}})
	greedy := f.openAs(t, node("node-0"))
	deferred := 0
	for _, result := range greedy.register(slicesRepeat(holders(0, 1)[0], 1000)...).RegistrationResults {
		if result.GetRejection().GetReason() == "REGISTRATION_RATE_LIMITED" {
			deferred++
		}
	}
	if deferred < 980 {
		t.Errorf("%d of 1,000 registrations of one identity were deferred, want 990", deferred)
	}
	for i := 1; i <= 20; i++ {
		// The agents of two nodes have tokens of one ServiceAccount.
		if result := f.openAs(t, token(agentAccount, fmt.Sprintf("node-%d", i))).register(holders(i, 1)...).RegistrationResults[0]; result.Handle == 0 {
			t.Errorf("node-%d: %v", i, result)
		}
	}
}

func slicesRepeat(h *leasev1.Holder, n int) []*leasev1.Holder {
	list := make([]*leasev1.Holder, n)
	for i := range list {
		list[i] = h
	}
	return list
}

// Refused items cost their sender what messages cost.
func TestHeartbeat_RefusedItemsCountAsMessages(t *testing.T) {
	f := newFixture(t, setup{maxMessages: 100})
	var last error
	calls := 0
	for ; last == nil && calls < 100; calls++ {
		_, last = f.beat(t, node("thief"), unary(uint64(calls+1), holders(0, 500)))
	}
	// A slow machine grants further messages between the calls.
	if rpcerror.ReasonOf(last) != "TOO_MANY_MESSAGES" || calls > 25 {
		t.Errorf("call %d: %v, want TOO_MANY_MESSAGES after some 1,000 refused items", calls, last)
	}
	if _, err := f.beat(t, node("node-1"), unary(1, holders(1, 1))); err != nil {
		t.Errorf("another identity: %v", err)
	}
}

// A caller that may beat for no holder has no message read, and one that may beat for one holder of
// each class does not batch.
func TestBegin_DecidesWithoutAMessage(t *testing.T) {
	r := &reviewer{answer: func(user authn.User, _ authz.Attributes) (authz.Decision, error) {
		if user.Name == "dora" {
			return authz.Decision{}, errors.New("away")
		}
		return authz.Decision{Allowed: user.Name == "alice"}, nil
	}}
	f := newFixture(t, setup{furtherClasses: []class.Class{reviewedClass()}, authorizer: authz.New(r)})
	forwarded := node("node-0")
	forwarded.Forwarded = true
	for _, c := range []struct {
		caller          *authn.Caller
		begins, batches bool
	}{
		{node("node-0"), true, false},
		{certified("alice"), true, true},
		{certified("bob"), false, false},
		{certified("dora"), true, false}, // not known, and her holders may live
		{forwarded, false, false},
		{unchecked(), true, true},
	} {
		for _, method := range []string{
			leasev1.HeartbeatService_Heartbeat_FullMethodName, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName, leasev1.HeartbeatService_ReleaseLease_FullMethodName,
		} {
			_, err := f.begin(t, c.caller, method)
			if begins := err == nil; begins != c.begins || !begins && (status.Code(err) != codes.PermissionDenied || rpcerror.ReasonOf(err) != rpcerror.NotAuthorizedReason) {
				t.Errorf("%s of %q: %v", method, c.caller.User.Name, err)
			}
		}
		if batches := f.server.Batches(t.Context(), c.caller) == nil; batches != c.batches {
			t.Errorf("%q batches: %t, want %t", c.caller.User.Name, batches, c.batches)
		}
	}
}

// Only PeerService, which is for servers, takes what a client must not claim.
func TestRequests_OfClientsHaveNoAgeOfReceiptAndNoForwarder(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var walk func(message protoreflect.MessageDescriptor)
	walk = func(message protoreflect.MessageDescriptor) {
		if seen[message.FullName()] {
			return
		}
		seen[message.FullName()] = true
		for i := range message.Fields().Len() {
			field := message.Fields().Get(i)
			switch field.Name() {
			case "age", "forwarded_by", "forwarded", "replica_id", "opened_by", "conditions_omitted":
				t.Errorf("a client can set %s", field.FullName())
			}
			if field.Message() != nil {
				walk(field.Message())
			}
		}
	}
	methods := leasev1.File_trivet_lease_v1_heartbeat_proto.Services().ByName("HeartbeatService").Methods()
	for i := range methods.Len() {
		walk(methods.Get(i).Input())
	}
	if seen["trivet.lease.v1.ForwardedBeat"] || !seen["trivet.lease.v1.Beat"] || !seen["trivet.lease.v1.Registration"] {
		t.Errorf("looked at %v", seen)
	}
}
