package leasesvc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"

	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/admission"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// fullPause is when a holder that found no room may try again.
	fullPause = time.Minute
	// maxAge is what counts of the age of a beat that was handed on.
	maxAge = time.Minute
	// streamsPerIntroduction is how many streams may be opened for each holder that may be taken in: only whoever opens streams
	// in vain is stopped at the door, where it costs him a beat.
	streamsPerIntroduction = 2
)

// Unvalidated lists the methods whose messages are checked here instead of by the interceptor, because they are hot.
func Unvalidated() []string { return []string{leasev1.LeaseService_StreamHeartbeats_FullMethodName} }

// server answers the RPCs.
type server struct {
	leasev1.UnimplementedLeaseServiceServer

	service *Service
	catalog catalog
	deleter deleter
	streams atomic.Int64

	began  time.Time
	gate   *admission.Gate // of introductions
	doors  *admission.Gate // of streams
	meters *admission.Meters
	// longestPace is the longest that a stream is asked to wait at the door.
	longestPace time.Duration
}

func newServer(s *Service) *server {
	return &server{
		service: s, catalog: newCatalog(&s.cfg), deleter: s.writer, began: time.Now(),
		gate: admission.NewGate(s.cfg.MaxIntroductions), doors: admission.NewGate(streamsPerIntroduction * s.cfg.MaxIntroductions),
		meters: admission.NewMeters(s.cfg.MaxMessages), longestPace: shortestGrace(s.cfg.classes()) / waitingShare,
	}
}

func (s *server) register(registrar grpc.ServiceRegistrar) {
	leasev1.RegisterLeaseServiceServer(registrar, s)
}

// keeper returns the sessions of the shards that are held here, or sessioncontroller.ErrEnded while nobody keeps any.
func (s *server) keeper() (*sessioncontroller.Controller, error) {
	if k := s.service.keeper.Load(); k != nil {
		return k, nil
	}
	return nil, sessioncontroller.ErrStopped
}

// freshness is that of an answer made from memory alone.
func (s *server) freshness(epoch int64) *statusv1.Freshness {
	return status.Freshness(s.service.member.ID, epoch, "")
}

// Heartbeat implements the RPC.
func (s *server) Heartbeat(ctx context.Context, request *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
	k, err := s.keeper()
	if err != nil {
		return nil, s.problem(err)
	}
	response := &leasev1.HeartbeatResponse{Results: make([]*leasev1.HeartbeatResult, len(request.Beats))}
	x := sessioncontroller.NewBatch()
	// What was handed on is ordered by its age, which is better than a sequence of a stream elsewhere.
	forwarded := request.ForwardedBy != ""
	x.Unordered = !forwarded
	reception := s.reception()
	reception.final = forwarded
	var places []int // of each introduction in the request
	for i, beat := range request.Beats {
		introduction, known := s.catalog.introduction(beat.Holder, beat.Sequence)
		if !known {
			response.Results[i] = &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Refusal{Refusal: unknownClass(beat.Holder.GetClass())}}
			s.service.metrics.unknownClass.Inc()
			continue
		}
		if forwarded {
			introduction.Age = ageOf(beat)
		}
		x.Registrations = append(x.Registrations, introduction)
		places = append(places, i)
	}
	if err := k.Process(ctx, x); err != nil {
		return nil, s.problem(err)
	}
	for i, met := range x.Results {
		response.Results[places[i]] = heartbeatResult(met, reception.refusal(met, &x.Registrations[i]))
	}
	reception.handOn()
	return response, nil
}

// ageOf is how long ago a beat that was handed on was heard.
func ageOf(beat *leasev1.HeartbeatRequest_Beat) time.Duration {
	return min(max(beat.GetAge().AsDuration(), 0), maxAge)
}

func heartbeatResult(met sessioncontroller.RegisterResult, why *leasev1.Refusal) *leasev1.HeartbeatResult {
	if why != nil {
		return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Refusal{Refusal: why}}
	}
	return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Grant{Grant: grantOf(met.Grant)}}
}

// ReleaseLease implements the RPC.
func (s *server) ReleaseLease(ctx context.Context, request *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
	k, err := s.keeper()
	if err != nil {
		return nil, s.problem(err)
	}
	holder, known := s.catalog.holder(request.Holder)
	if !known {
		return &leasev1.ReleaseLeaseResponse{}, nil // such a session cannot exist
	}
	if err := s.release(ctx, k, holder, s.catalog.shardOf(request.Holder)); err != nil {
		return nil, s.problem(err)
	}
	return &leasev1.ReleaseLeaseResponse{}, nil
}

// GetLease implements the RPC.
func (s *server) GetLease(ctx context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	k, err := s.keeper()
	if err != nil {
		return nil, s.problem(err)
	}
	key, served := s.catalog.key(request.Name)
	if !served {
		return nil, s.problem(notFoundError{name: request.Name})
	}
	lease, found, err := k.Get(ctx, key, s.catalog.shardOfKey(key))
	if err == nil && !found {
		err = notFoundError{name: request.Name}
	}
	if err != nil {
		return nil, s.problem(err)
	}
	return &leasev1.GetLeaseResponse{Lease: s.catalog.lease(&lease), Freshness: s.freshness(lease.Epoch)}, nil
}

// ListLeases implements the RPC.
func (s *server) ListLeases(ctx context.Context, request *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	k, err := s.keeper()
	if err != nil {
		return nil, s.problem(err)
	}
	query := sessioncontroller.ListOptions{
		Limit: pageSize(request.PageSize), Classes: s.catalog.within(request.Parent), State: stateFrom(request.State),
	}
	arguments := fmt.Sprintf("%s\x00%d", request.Parent, request.State)
	if request.PageToken != "" {
		if query.After, err = s.resume(request.PageToken, arguments); err != nil {
			return nil, s.problem(err)
		}
	}
	epoch := k.Epoch() // before the read, so that it never claims more than the answer holds
	page, more, err := k.List(ctx, query)
	if err != nil {
		return nil, s.problem(err)
	}
	response := &leasev1.ListLeasesResponse{Leases: s.catalog.leases(page), Freshness: s.freshness(epoch)}
	if more {
		response.NextPageToken = pageToken(arguments, s.catalog.name(page[len(page)-1].Holder.Key))
	}
	return response, nil
}

func (s *server) resume(token, arguments string) (session.Key, error) {
	last, err := parsePageToken(token, arguments)
	if err != nil {
		return session.Key{}, err
	}
	key, served := s.catalog.key(last)
	if !served {
		return session.Key{}, errPageToken
	}
	return key, nil
}
