package api

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// maxForwardedAge is the greatest age of a forwarded beat that counts. An older beat is not sent.
const maxForwardedAge = time.Minute

// Heartbeat registers and renews the holders of one message, from clients without a stream.
func (s *Server) Heartbeat(ctx context.Context, request *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
	if err := s.checkCluster(request.ClientInfo); err != nil {
		return nil, err
	}
	caller, sender := authn.FromContext(ctx), senderIn(ctx)
	beats := newBeatBatch(s, newReply(s, caller, leasev1.HeartbeatService_Heartbeat_FullMethodName), len(request.Beats))
	beats.access = s.accessIn(ctx, caller)
	beats.batch.Unordered = true
	beats.batch.Admit = func() bool { return s.admitRegistrations(sender, time.Now(), 1) == 1 }
	for _, beat := range request.Beats {
		beats.add(ctx, &leasev1.ForwardedBeat{Beat: beat}, agentFrom(request.ClientInfo))
	}
	s.reportRefused(beats.access, sender, leasev1.HeartbeatService_Heartbeat_FullMethodName)
	results, err := beats.process(ctx)
	if err != nil {
		return nil, s.statusOf(err)
	}
	return &leasev1.HeartbeatResponse{Results: results, ServerInfo: s.info}, nil
}

// ForwardHeartbeats registers and renews the holders whose beats another replica received. They are
// ordered by their age, which is more reliable than the sequence of a stream to another replica. No
// beat is forwarded again.
func (s *Server) ForwardHeartbeats(ctx context.Context, request *leasev1.ForwardHeartbeatsRequest) (*leasev1.ForwardHeartbeatsResponse, error) {
	reply := newReply(s, authn.FromContext(ctx), leasev1.PeerService_ForwardHeartbeats_FullMethodName)
	beats := newBeatBatch(s, reply, len(request.Beats))
	beats.reply.forwarded, beats.batch.Forwarded = true, true
	for _, beat := range request.Beats {
		beats.add(ctx, beat, session.Agent{Mode: beat.GetMode()})
	}
	results, err := beats.process(ctx)
	if err != nil {
		return nil, s.statusOf(err)
	}
	return &leasev1.ForwardHeartbeatsResponse{Results: results}, nil
}

// checkCluster rejects a client that means another cluster.
func (s *Server) checkCluster(client *metav1.ClientInfo) error {
	if cluster := client.GetCluster(); cluster != "" && cluster != s.Cluster {
		return rpcerror.New(codes.FailedPrecondition, rpcerror.WrongClusterReason,
			fmt.Sprintf("this server is of cluster %q and not of %q", s.Cluster, cluster))
	}
	return nil
}

// beatBatch is one message with beats by name.
type beatBatch struct {
	server *Server
	// access is nil for beats of a peer, which has decided about them.
	access  *access
	reply   *reply
	batch   *sessioncontroller.Batch
	results []*leasev1.HeartbeatResult // nil for a beat in the batch
}

func newBeatBatch(server *Server, reply *reply, n int) *beatBatch {
	return &beatBatch{
		server: server, reply: reply, batch: sessioncontroller.NewBatch(), results: make([]*leasev1.HeartbeatResult, 0, n),
	}
}

// add adds a beat. One that was received here has no age.
func (b *beatBatch) add(ctx context.Context, forwarded *leasev1.ForwardedBeat, agent session.Agent) {
	beat := forwarded.GetBeat()
	registration, served := b.server.convert.registration(beat.GetHolder(), beat.GetReport(), beat.GetSequence())
	if !served {
		b.results = append(b.results, rejectedBeat(b.server.unknownClass(beat.GetHolder().GetClass())))
		return
	}
	if b.access == nil {
		registration.Owner = forwarded.GetOpenedBy()
	} else if rejection := b.access.refuse(ctx, registration.Holder.Key); rejection != nil {
		b.results = append(b.results, rejectedBeat(rejection))
		return
	} else {
		registration.Owner = b.server.ownerOf(b.access, registration.Holder.Key.Class)
	}
	registration.Agent = agent
	registration.Age = min(max(forwarded.GetAge().AsDuration(), 0), maxForwardedAge)
	if registration.Report != nil {
		registration.Report.ConditionsOmitted = forwarded.GetConditionsOmitted()
	}
	b.batch.Registrations = append(b.batch.Registrations, registration)
	b.results = append(b.results, nil)
}

// process returns the results of all beats.
func (b *beatBatch) process(ctx context.Context) ([]*leasev1.HeartbeatResult, error) {
	sessions, err := b.server.runningSessions()
	if err != nil {
		return nil, err
	}
	if err := sessions.Process(ctx, b.batch); err != nil {
		return nil, err
	}
	next := 0 // in the batch
	for i := range b.results {
		if b.results[i] != nil {
			continue
		}
		result, registration := &b.batch.Results[next], &b.batch.Registrations[next]
		next++
		if rejection := b.reply.registrationRejection(result, registration); rejection != nil {
			b.results[i] = rejectedBeat(rejection)
		} else {
			b.results[i] = &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Grant{Grant: grantOf(result.Grant)}}
		}
	}
	b.reply.forward()
	return b.results, nil
}

func rejectedBeat(rejection *leasev1.Rejection) *leasev1.HeartbeatResult {
	return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Rejection{Rejection: rejection}}
}
