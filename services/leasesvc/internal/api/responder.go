package api

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// maxHandles is how many registrations one stream may make. A handle is never reused, so this
	// bounds its memory.
	maxHandles = 20_000
	// maxEarly is the number of early messages in a row after which the client is told to slow
	// down.
	maxEarly = 4
	// keepRefs is the number of refs for which a stream keeps memory between messages.
	keepRefs = 16
	// resyncThreshold is how many sessions must be gone at once for DIRECTIVE_RESYNC. Fewer may
	// have been released one by one.
	resyncThreshold = 8
)

// responder answers the messages of one stream, one after the other. It belongs to one goroutine.
type responder struct {
	server   *Server
	sessions Sessions
	caller   *authn.Caller
	sender   *sender

	handles  []handle      // a handle on the wire is an index plus one
	boots    []string      // referenced by handles
	grants   []grant       // referenced by handles
	live     int           // handles that have not been rejected
	sequence uint64        // of the last message
	agent    session.Agent // of the first message
	early    int           // early messages in a row

	// The fields below describe the current message. They are reused for the next one, when gRPC
	// has encoded the response.
	request    leasev1.StreamHeartbeatsRequest
	response   leasev1.StreamHeartbeatsResponse
	batch      *sessioncontroller.Batch
	refHandles []uint32 // the handles of batch.Refs
	// superseded is set if another boot has taken over a holder of the message.
	superseded bool
}

// handle is what a stream stores for a registered holder. A replica has up to a million of them, so
// its size is 32 bytes.
type handle struct {
	ref session.Ref
	// name is the session's own string. Only a holder that is redirected needs its name and boot.
	name  string
	boot  uint16 // index in responder.boots
	shard uint16
	grant uint16 // index in responder.grants
	class session.ClassID
	// rejected is set after a beat was rejected.
	rejected bool
}

// grant is a grant with its API message. A stream needs one for each class and term. A session
// never changes its term, so a handle keeps its grant.
type grant struct {
	sessioncontroller.Grant
	message *leasev1.Grant
}

func newResponder(server *Server, sessions Sessions, caller *authn.Caller, sender *sender) *responder {
	return &responder{server: server, sessions: sessions, caller: caller, sender: sender, batch: sessioncontroller.NewBatch()}
}

// respond processes a message and stores the answer in r.response. An error ends the stream.
//
// If the message has only bare handles of live holders, respond allocates nothing and waits for no
// other stream, except for the meter of its sender.
func (r *responder) respond(ctx context.Context, request *leasev1.StreamHeartbeatsRequest) error {
	if err := r.check(request); err != nil {
		return err
	}
	directive, err := r.server.directive(r.sender)
	if err != nil {
		return err
	}
	r.reset(request.Sequence)
	if len(request.Registrations) > 0 {
		r.authorize(ctx, request)
	}
	r.response.Directive = directive
	silence, grant := r.beat(request)
	if grant.Interval != 0 {
		if err := r.sessions.CheckTerms(); err != nil {
			return err
		}
	}
	r.addReports(request.Reports)
	if len(r.batch.Registrations)+len(r.batch.Refs) > 0 {
		r.batch.Sequence = request.Sequence
		if err := r.sessions.Process(ctx, r.batch); err != nil {
			return err
		}
		reply := newReply(r.server, r.caller, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName)
		r.addRegistrationResults(reply)
		grant = r.addBeatResults(grant, reply)
		reply.forward()
	}
	if grant.Interval == 0 {
		return nil // no session was renewed
	}
	r.response.Grant = r.grantMessage(grant, len(request.Reports) > 0)
	// A client that registers holders has a reason to send early.
	if len(request.Registrations) == 0 && r.tooEarly(silence, grant.Interval) && directive == 0 {
		r.response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN
	}
	return nil
}

// check enforces the rules of the protocol.
func (r *responder) check(request *leasev1.StreamHeartbeatsRequest) error {
	if err := validate(request); err != nil {
		return err
	}
	if request.Sequence <= r.sequence {
		return errSequence(request.Sequence, r.sequence)
	}
	if r.sequence == 0 {
		if err := r.server.checkCluster(request.ClientInfo); err != nil {
			return err
		}
		r.agent = agentFrom(request.ClientInfo)
		if len(request.Registrations) == 0 {
			return errRegistrationRequired()
		}
	}
	if len(r.handles)+len(request.Registrations) > maxHandles {
		return errStreamFull()
	}
	for _, number := range request.Handles {
		if number == 0 || int(number) > len(r.handles) {
			return errHandle(number)
		}
	}
	if err := r.checkReports(request); err != nil {
		return err
	}
	r.sequence = request.Sequence
	return nil
}

// checkReports enforces that a message has one beat for each handle with a report. A bare handle
// would hide the age in the report.
func (r *responder) checkReports(request *leasev1.StreamHeartbeatsRequest) error {
	if len(request.Reports) == 0 {
		return nil
	}
	reported := make(map[uint32]bool, len(request.Reports))
	for i, report := range request.Reports {
		number := report.GetHandle()
		if number == 0 || int(number) > len(r.handles) {
			return errHandle(number)
		}
		if reported[number] {
			return invalid(fmt.Sprintf("reports[%d].handle", i), "must have one report in a message")
		}
		reported[number] = true
	}
	for i, number := range request.Handles {
		if reported[number] {
			return invalid(fmt.Sprintf("handles[%d]", i), "must not have a report in the same message")
		}
	}
	return nil
}

func (r *responder) reset(sequence uint64) {
	m := &r.response
	m.Sequence, m.RegistrationResults, m.Grant, m.RejectedHandles, m.Directive, m.RedirectAddress = sequence, nil, nil, nil, 0, ""
	m.ServerInfo, m.Limits = nil, nil
	r.batch.Registrations = r.batch.Registrations[:0]
	r.superseded = false
}

// beat renews the sessions of live holders and adds the remaining ones to the batch. It returns how
// long the first holder was silent. The grant is zero if no session was renewed.
func (r *responder) beat(request *leasev1.StreamHeartbeatsRequest) (silence time.Duration, grant sessioncontroller.Grant) {
	batch := r.batch
	batch.Refs, batch.Reports, r.refHandles = batch.Refs[:0], batch.Reports[:0], r.refHandles[:0]
	now, running := r.sessions.Now()
	silence = r.silence(now, request)
	lastGrant, renewed := -1, 0
	for _, number := range request.Handles {
		h := &r.handles[number-1]
		if !running || !r.sessions.Beat(now, h.ref, request.Sequence) {
			batch.Refs, r.refHandles = append(batch.Refs, h.ref), append(r.refHandles, number)
			continue
		}
		if renewed++; int(h.grant) != lastGrant {
			lastGrant = int(h.grant)
			grant = grant.Min(r.grants[h.grant].Grant)
		}
	}
	if renewed > 0 {
		r.server.metrics.count(session.Renewed, renewed)
	}
	return silence, grant
}

// unknownSilence is a silence that is never too short.
const unknownSilence = time.Duration(math.MaxInt64)

// silence returns how long the first holder of the message was silent.
func (r *responder) silence(now monotonic.Instant, request *leasev1.StreamHeartbeatsRequest) time.Duration {
	var first uint32
	switch {
	case len(request.Handles) > 0:
		first = request.Handles[0]
	case len(request.Reports) > 0:
		first = request.Reports[0].GetHandle()
	default:
		return unknownSilence
	}
	last, known := r.sessions.LastBeat(r.handles[first-1].ref)
	if !known {
		return unknownSilence
	}
	return now.Sub(last)
}

// addReports adds the beats with a report to the batch. The owner of the sessions processes them,
// because it keeps the reports.
func (r *responder) addReports(reports []*leasev1.HandleReport) {
	for _, report := range reports {
		number := report.GetHandle()
		if report.GetReport() != nil {
			r.batch.Reports = append(r.batch.Reports, sessioncontroller.BeatReport{
				Index: len(r.batch.Refs), Report: reportFrom(report.Report),
			})
		}
		r.batch.Refs, r.refHandles = append(r.batch.Refs, r.handles[number-1].ref), append(r.refHandles, number)
	}
}

// authorize decides about the registrations of a message, each alone: it adds the accepted ones to
// the batch and rejects the others. addRegistrationResults fills the nil elements of the results.
func (r *responder) authorize(ctx context.Context, request *leasev1.StreamHeartbeatsRequest) {
	access := r.server.accessOf(r.caller)
	r.response.RegistrationResults = r.addRegistrations(ctx, access, request)
	r.server.reportRefused(access, r.sender, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName)
}

func (r *responder) addRegistrations(ctx context.Context, access *access, request *leasev1.StreamHeartbeatsRequest) []*leasev1.RegistrationResult {
	results := make([]*leasev1.RegistrationResult, len(request.Registrations))
	firstBoot := request.Registrations[0].GetHolder().GetBootId()
	for i, wanted := range request.Registrations {
		registration, served := r.server.convert.registration(wanted.GetHolder(), wanted.GetReport(), request.Sequence)
		if !served {
			results[i] = rejectedRegistration(r.server.unknownClass(wanted.GetHolder().GetClass()))
			continue
		}
		if rejection := r.refuse(ctx, access, registration.Holder.Key); rejection != nil {
			results[i] = rejectedRegistration(rejection)
			continue
		}
		if registration.Holder.Boot == firstBoot {
			registration.Holder.Boot = firstBoot // share one string
		}
		registration.Owner, registration.Agent = r.server.ownerOf(access, registration.Holder.Key.Class), r.agent
		r.batch.Registrations = append(r.batch.Registrations, registration)
	}
	admitted := r.server.admitRegistrations(r.sender, time.Now(), len(r.batch.Registrations))
	for i := range r.batch.Registrations {
		r.batch.Registrations[i].Deferred = i >= admitted
	}
	return results
}

// refuse returns the rejection of a registration; nil if the caller may make it.
func (r *responder) refuse(ctx context.Context, access *access, key session.Key) *leasev1.Rejection {
	if r.sender != nil && r.sender.credential != nil && r.sender.credential.ended.Load() {
		return &leasev1.Rejection{
			Reason: string(rpcerror.NotAuthenticatedReason), Code: code.Code_UNAUTHENTICATED,
			Message: "the credential of this stream has ended; register on a new stream with a fresh one", RetryAfter: durationpb.New(0),
		}
	}
	return access.refuse(ctx, key)
}

func rejectedRegistration(rejection *leasev1.Rejection) *leasev1.RegistrationResult {
	return &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{Rejection: rejection}}
}

// addRegistrationResults adds the results of the batch's registrations to the response.
func (r *responder) addRegistrationResults(reply *reply) {
	results, next := r.response.RegistrationResults, 0
	r.growHandles(len(r.batch.Results))
	for i := range r.batch.Results {
		next += slices.Index(results[next:], nil)
		result, registration := &r.batch.Results[i], &r.batch.Registrations[i]
		if rejection := reply.registrationRejection(result, registration); rejection != nil {
			results[next] = rejectedRegistration(rejection)
		} else {
			results[next] = r.addHandle(result, registration)
		}
		r.superseded = r.superseded || result.Outcome == session.Superseded
	}
}

// growHandles adds capacity for n handles. Most streams register all holders in one message and get
// no more; the 16th of spare capacity keeps the cost low for a stream that registers them one by
// one.
func (r *responder) growHandles(n int) {
	if have := len(r.handles); have+n > cap(r.handles) {
		r.handles = append(make([]handle, 0, have+max(n, have/16)), r.handles...)
	}
}

func (r *responder) addHandle(result *sessioncontroller.RegisterResult, registration *sessioncontroller.Registration) *leasev1.RegistrationResult {
	r.handles = append(r.handles, handle{
		ref: result.Ref, name: result.Name, boot: r.bootIndex(registration.Holder.Boot), class: registration.Holder.Key.Class,
		shard: uint16(registration.Shard), grant: r.grantIndex(result.BeatGrant),
	})
	r.live++
	return &leasev1.RegistrationResult{
		Handle: uint32(len(r.handles)), Result: &leasev1.RegistrationResult_Grant{Grant: grantOf(result.Grant)},
	}
}

// bootIndex returns the index of a boot ID in r.boots. The holders of a stream usually share one,
// so it compares the last only.
func (r *responder) bootIndex(boot string) uint16 {
	if n := len(r.boots); n == 0 || r.boots[n-1] != boot {
		r.boots = append(r.boots, boot)
	}
	return uint16(len(r.boots) - 1)
}

func (r *responder) grantIndex(wanted sessioncontroller.Grant) uint16 {
	for i := range r.grants {
		if r.grants[i].Grant == wanted {
			return uint16(i)
		}
	}
	r.grants = append(r.grants, grant{Grant: wanted, message: grantOf(wanted)})
	return uint16(len(r.grants) - 1)
}

// grantMessage returns the message of a grant. A grant that a report has shortened is not kept: it
// hardly ever returns.
func (r *responder) grantMessage(granted sessioncontroller.Grant, reported bool) *leasev1.Grant {
	if reported {
		return grantOf(granted)
	}
	return r.grants[r.grantIndex(granted)].message
}

// addBeatResults adds the results of the batch's refs to the response and returns the grant of all
// renewed sessions.
func (r *responder) addBeatResults(granted sessioncontroller.Grant, reply *reply) sessioncontroller.Grant {
	batch := r.batch
	if batch.Renewed > 0 {
		r.server.metrics.count(session.Renewed, batch.Renewed)
		granted = granted.Min(batch.Grant)
	}
	resync := granted.Interval == 0 && r.needsResync(reply)
	if resync {
		r.response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC
	}
	reports := batch.Reports
	for _, rejected := range batch.Rejected {
		number := r.refHandles[rejected.Index]
		h := &r.handles[number-1]
		for len(reports) > 0 && reports[0].Index < rejected.Index {
			reports = reports[1:]
		}
		var report *sessioncontroller.Report
		if len(reports) > 0 && reports[0].Index == rejected.Index {
			report = new(reports[0].Report)
		}
		rejection := reply.beatRejection(rejected, int(h.shard), r.forwardableBeat(h, report))
		if !resync {
			r.response.RejectedHandles = append(r.response.RejectedHandles, &leasev1.RejectedHandle{Handle: number, Rejection: rejection})
		}
		r.superseded = r.superseded || rejected.Outcome == session.Superseded
		if !h.rejected {
			h.rejected = true
			r.live--
		}
	}
	return granted
}

// forwardableBeat returns the beat of a handle in the current message, as another replica needs it.
func (r *responder) forwardableBeat(h *handle, report *sessioncontroller.Report) Beat {
	return Beat{
		Class: r.server.Catalog.Get(h.class).Name, Name: h.name, Boot: r.boots[h.boot], Sequence: r.sequence, Report: report,
		Owner: r.server.ownerOf(r.server.accessOf(r.caller), h.class), Mode: forwardableMode(r.agent),
	}
}

// needsResync reports whether all beats of the message were for sessions that are gone although
// this replica holds their shards. The shards have left and come back, and one directive is shorter
// than a rejection for each handle.
func (r *responder) needsResync(reply *reply) bool {
	rejected := r.batch.Rejected
	if len(rejected) < resyncThreshold || len(rejected) < len(r.refHandles) {
		return false
	}
	for i := range rejected {
		h := &r.handles[r.refHandles[rejected[i].Index]-1]
		if rejected[i].Outcome != session.Unknown || !reply.holds(int(h.shard)) {
			return false
		}
	}
	return true
}

// tooEarly counts messages that came before half of their interval. It takes the silence of the
// message's first holder, not of the stream: holders that were registered in several messages, or
// are of several classes, beat in several messages.
func (r *responder) tooEarly(silence, interval time.Duration) bool {
	if silence < interval/2 {
		r.early++
	} else {
		r.early = 0
	}
	return r.early >= maxEarly
}

// limits returns what the stream accepts.
func (r *responder) limits() *leasev1.StreamLimits {
	limits := &leasev1.StreamLimits{
		RegistrationsPerMessage: maxRegistrations, HandlesPerMessage: maxBeats, RegistrationsPerStream: maxHandles,
	}
	if r.sender != nil {
		limits.MessagesPerSecond = float64(r.server.MaxMessages)
	}
	return limits
}

// releaseMemory drops what the last message made large. A stream registers its holders once and
// then beats for days.
func (r *responder) releaseMemory() {
	r.request.Reset()
	r.reset(0)
	r.batch.Registrations, r.batch.Results, r.batch.Reports = nil, nil, nil
	if cap(r.batch.Refs) > keepRefs {
		r.batch.Refs, r.batch.Rejected, r.refHandles = nil, nil, nil
	}
}
