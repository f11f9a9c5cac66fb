package api

import (
	"context"
	"math"
	"slices"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

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
	sender   *sender

	handles  []handle // a handle on the wire is an index plus one
	boots    []string // referenced by handles
	grants   []grant  // referenced by handles
	live     int      // handles that have not been refused
	sequence uint64   // of the last message
	early    int      // early messages in a row

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
	// refused is set after a beat was refused.
	refused bool
}

// grant is a grant with its API message. A stream needs one for each class and term. A session
// never changes its term, so a handle keeps its grant.
type grant struct {
	sessioncontroller.Grant
	message *leasev1.Grant
}

func newResponder(server *Server, sessions Sessions, sender *sender) *responder {
	return &responder{server: server, sessions: sessions, sender: sender, batch: sessioncontroller.NewBatch()}
}

// respond processes a message and stores the answer in r.response. An error ends the stream.
//
// If the message has only beats of live holders, respond allocates nothing and waits for no other
// stream, except for the meter of its sender.
func (r *responder) respond(ctx context.Context, request *leasev1.StreamHeartbeatsRequest) error {
	if err := r.check(request); err != nil {
		return err
	}
	directive, err := r.server.directive(r.sender)
	if err != nil {
		return err
	}
	r.reset(request.Sequence)
	r.response.Directive = directive
	silence, grant := r.beat(request)
	r.response.Welcomes = r.addRegistrations(request)
	if len(r.batch.Registrations)+len(r.batch.Refs) > 0 {
		r.batch.Sequence = request.Sequence
		if err := r.sessions.Process(ctx, r.batch); err != nil {
			return err
		}
		reply := newReply(r.server)
		r.addRegistrationResults(reply)
		grant = r.addBeatResults(grant, reply)
		reply.forward()
	}
	if grant.Interval == 0 {
		return nil // no session was renewed
	}
	r.response.Grant = r.grants[r.grantIndex(grant)].message
	// A client that registers holders has a reason to send early.
	if len(request.Holders) == 0 && r.tooEarly(silence, grant.Interval) && directive == 0 {
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
	if r.sequence == 0 && len(request.Holders) == 0 {
		return errHolderExpected()
	}
	if len(r.handles)+len(request.Holders) > maxHandles {
		return errStreamFull()
	}
	for _, number := range request.Handles {
		if number == 0 || int(number) > len(r.handles) {
			return errHandle(number)
		}
	}
	r.sequence = request.Sequence
	return nil
}

func (r *responder) reset(sequence uint64) {
	m := &r.response
	m.Sequence, m.Welcomes, m.Grant, m.RefusedHandles, m.Directive, m.MoveTo = sequence, nil, nil, nil, 0, ""
	r.superseded = false
}

// beat renews the sessions of live holders and adds the remaining ones to the batch. It returns how
// long the first holder was silent. The grant is zero if no session was renewed.
func (r *responder) beat(request *leasev1.StreamHeartbeatsRequest) (silence time.Duration, grant sessioncontroller.Grant) {
	batch := r.batch
	batch.Refs, r.refHandles = batch.Refs[:0], r.refHandles[:0]
	now, running := r.sessions.Now()
	silence = r.silence(now, request.Handles)
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

func (r *responder) silence(now monotonic.Instant, handles []uint32) time.Duration {
	if len(handles) == 0 {
		return unknownSilence
	}
	last, known := r.sessions.LastBeat(r.handles[handles[0]-1].ref)
	if !known {
		return unknownSilence
	}
	return now.Sub(last)
}

// addRegistrations adds the holders of served classes to the batch and refuses the remaining ones.
// addRegistrationResults fills the nil elements of the result.
func (r *responder) addRegistrations(request *leasev1.StreamHeartbeatsRequest) []*leasev1.Welcome {
	r.batch.Registrations = r.batch.Registrations[:0]
	if len(request.Holders) == 0 {
		return nil
	}
	admitted := r.server.registrations.admit(time.Now(), len(request.Holders))
	welcomes := make([]*leasev1.Welcome, len(request.Holders))
	for i, h := range request.Holders {
		registration, served := r.server.convert.registration(h, request.Sequence)
		if !served {
			welcomes[i] = refusedWelcome(r.server.unknownClass(h.GetClass()))
			continue
		}
		if i > 0 && registration.Holder.Boot == request.Holders[0].BootId {
			registration.Holder.Boot = request.Holders[0].BootId // share one string
		}
		registration.Deferred = len(r.batch.Registrations) >= admitted
		r.batch.Registrations = append(r.batch.Registrations, registration)
	}
	return welcomes
}

func refusedWelcome(refusal *leasev1.Refusal) *leasev1.Welcome {
	return &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: refusal}}
}

// addRegistrationResults adds the results of the batch's registrations to the response.
func (r *responder) addRegistrationResults(reply *reply) {
	welcomes, next := r.response.Welcomes, 0
	r.growHandles(len(r.batch.Results))
	for i := range r.batch.Results {
		next += slices.Index(welcomes[next:], nil)
		result, registration := &r.batch.Results[i], &r.batch.Registrations[i]
		if refusal := reply.registrationRefusal(result, registration); refusal != nil {
			welcomes[next] = refusedWelcome(refusal)
		} else {
			welcomes[next] = r.addHandle(result, registration)
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

func (r *responder) addHandle(result *sessioncontroller.RegisterResult, registration *sessioncontroller.Registration) *leasev1.Welcome {
	r.handles = append(r.handles, handle{
		ref: result.Ref, name: result.Name, boot: r.bootIndex(registration.Holder.Boot), class: registration.Holder.Key.Class,
		shard: uint16(registration.Shard), grant: r.grantIndex(result.BeatGrant),
	})
	r.live++
	return &leasev1.Welcome{
		Handle: uint32(len(r.handles)), Result: &leasev1.Welcome_Grant{Grant: grantOf(result.Grant)},
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
	for _, refused := range batch.Rejected {
		number := r.refHandles[refused.Index]
		h := &r.handles[number-1]
		refusal := reply.beatRefusal(refused.Outcome, int(h.shard), r.forwardableBeat(h))
		if !resync {
			r.response.RefusedHandles = append(r.response.RefusedHandles, &leasev1.RefusedHandle{Handle: number, Refusal: refusal})
		}
		r.superseded = r.superseded || refused.Outcome == session.Superseded
		if !h.refused {
			h.refused = true
			r.live--
		}
	}
	return granted
}

// forwardableBeat returns the beat of a handle in the current message, as another replica needs it.
func (r *responder) forwardableBeat(h *handle) Beat {
	return Beat{
		Class: r.server.Catalog.Get(h.class).Name, Name: h.name, Boot: r.boots[h.boot], Sequence: r.sequence,
	}
}

// needsResync reports whether all beats of the message were for sessions that are gone although
// this replica holds their shards. The shards have left and come back, and one directive is shorter
// than a refusal for each handle.
func (r *responder) needsResync(reply *reply) bool {
	refused := r.batch.Rejected
	if len(refused) < resyncThreshold || len(refused) < len(r.refHandles) {
		return false
	}
	for i := range refused {
		h := &r.handles[r.refHandles[refused[i].Index]-1]
		if refused[i].Outcome != session.Unknown || !reply.holds(int(h.shard)) {
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

// releaseMemory drops what the last message made large. A stream registers its holders once and
// then beats for days.
func (r *responder) releaseMemory() {
	r.request.Reset()
	r.reset(0)
	r.batch.Registrations, r.batch.Results = nil, nil
	if cap(r.batch.Refs) > keepRefs {
		r.batch.Refs, r.batch.Rejected, r.refHandles = nil, nil, nil
	}
}
