// Package shadowapi serves what the loops in dry run of a process find, and their switch.
package shadowapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
)

const (
	// maxListed is the limit of the API for one loop of one replica. With its fields, the largest
	// answer stays below the 4 MiB of a gRPC message.
	maxListed = 200
	// staleAfter is the age from which the last pass says nothing. It is far above the time between
	// two passes of any loop.
	staleAfter = 5 * time.Minute
)

// LoopNotInDryRunReason means that the flags of a loop alone decide.
const LoopNotInDryRunReason rpcerror.Reason = "LOOP_NOT_IN_DRY_RUN"

// Switch stores which loops in dry run write; *term.Candidate is one. Its errors wrap
// term.ErrNotDryRun, or are those of etcd.
type Switch interface {
	SwitchLoop(ctx context.Context, loop string, on bool) error
}

// Server implements ShadowService.
type Server struct {
	shadowv1.UnimplementedShadowServiceServer
	member   term.Member
	trackers *shadow.Trackers
	loops    Switch
	logger   *slog.Logger
}

// New returns a server of the trackers of a replica.
func New(member term.Member, trackers *shadow.Trackers, loops Switch, logger *slog.Logger) *Server {
	return &Server{member: member, trackers: trackers, loops: loops, logger: logger}
}

// Register adds the service to registrar.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	shadowv1.RegisterShadowServiceServer(registrar, s)
}

// SwitchLoop stores that a loop writes, or only plans again.
func (s *Server) SwitchLoop(ctx context.Context, request *shadowv1.SwitchLoopRequest) (*shadowv1.SwitchLoopResponse, error) {
	loop := strings.TrimPrefix(request.GetName(), "loops/")
	if request.GetService() != s.member.Service || s.trackers.Tracker(loop) == nil {
		return nil, rpcerror.New(codes.FailedPrecondition, LoopNotInDryRunReason,
			fmt.Sprintf("loop %s of %s is not in --dry-run of this replica of %s; name it there before it is switched", loop, request.GetService(), s.member.Service))
	}
	if !request.GetValidateOnly() {
		err := s.loops.SwitchLoop(ctx, loop, request.GetWrites())
		if errors.Is(err, term.ErrNotDryRun) {
			return nil, rpcerror.New(codes.FailedPrecondition, LoopNotInDryRunReason, err.Error())
		}
		if err != nil {
			return nil, rpcerror.New(codes.Unavailable, rpcerror.EtcdUnreachableReason, fmt.Sprintf("the switch of loop %s is not stored: %v", loop, err))
		}
		s.logger.Info("loop in dry run was switched by a caller", "loop", loop, "writes", request.GetWrites())
	}
	return &shadowv1.SwitchLoopResponse{Name: request.GetName(), Writes: request.GetWrites(), Sources: []*metav1.Source{s.source()}}, nil
}

func (s *Server) source() *metav1.Source {
	return answer.Replica{Service: s.member.Service, ID: s.member.ID}.Source(0, nil)
}

// ListDifferences returns what the loops in dry run of this replica have found.
func (s *Server) ListDifferences(_ context.Context, request *shadowv1.ListDifferencesRequest) (*shadowv1.ListDifferencesResponse, error) {
	response := &shadowv1.ListDifferencesResponse{Sources: []*metav1.Source{s.source()}}
	for _, tracker := range s.trackers.All() {
		comparison := tracker.Comparison(maxListed)
		if loops := request.GetLoops(); comparison.Idle || len(loops) > 0 && !slices.Contains(loops, comparison.Loop) {
			continue
		}
		response.Comparisons = append(response.Comparisons, s.comparison(&comparison))
		for i := range comparison.Differences {
			response.Differences = append(response.Differences, s.difference(comparison.Loop, &comparison.Differences[i]))
		}
	}
	return response, nil
}

func (s *Server) comparison(c *shadow.Comparison) *shadowv1.Comparison {
	converted := &shadowv1.Comparison{
		Loop: c.Loop, ReplicaId: s.member.ID, ComparedCount: int64(c.Compared), SettlingCount: int64(c.Settling),
		SettleDuration: durationpb.New(c.Settle), SinceTime: prototime.New(c.Since), PassTime: prototime.New(c.Ended),
		Undetermined: wording.Valid(undetermined(c, time.Now())), PassCount: c.Passes, VerdictCount: c.Both, EarlierCount: c.Earlier,
	}
	for _, kind := range difference.Kinds() {
		for _, explained := range []bool{false, true} {
			if n := c.Counts[shadow.Count{Kind: kind, Explained: explained}]; n > 0 {
				converted.Counts = append(converted.Counts, &shadowv1.KindCount{Kind: kindOf(kind), Explained: explained, Count: int64(n)})
			}
		}
	}
	for _, verdict := range c.Verdicts {
		converted.Verdicts = append(converted.Verdicts, &shadowv1.Verdict{
			Node: wording.Valid(verdict.Node), TrivetTime: prototime.New(verdict.Trivet), UpstreamTime: prototime.New(verdict.Written),
			Lead: durationpb.New(verdict.Lead()),
		})
	}
	return converted
}

// undetermined returns why the comparison says nothing yet.
func undetermined(c *shadow.Comparison, now time.Time) string {
	if age := now.Sub(c.Ended); c.Undetermined == "" && age > staleAfter {
		return fmt.Sprintf("the last pass ended %s ago", age.Round(time.Second))
	}
	if held := c.Ended.Sub(c.Since); c.Undetermined == "" && held < c.Settle {
		return fmt.Sprintf("it compares since %s and a difference counts after %s", held.Round(time.Second), c.Settle)
	}
	return c.Undetermined
}

func (s *Server) difference(loop string, d *shadow.Difference) *shadowv1.Difference {
	object := d.Object.Name
	if d.Object.Namespace != "" {
		object = d.Object.Namespace + "/" + d.Object.Name
	}
	if d.Part != "" {
		object += "/" + d.Part
	}
	converted := &shadowv1.Difference{
		Name: wording.Valid(fmt.Sprintf("differences/%s/%s/%s/%s", loop, d.Kind, strings.ToLower(d.Object.Kind), object)),
		Loop: loop, Kind: kindOf(d.Kind), Subject: wording.Valid(d.Subject),
		Object: &metav1.ObjectReference{
			ApiVersion: wording.Valid(d.Object.APIVersion), Kind: wording.Valid(d.Object.Kind), Namespace: wording.Valid(d.Object.Namespace), Name: wording.Valid(d.Object.Name), Uid: wording.Valid(d.Object.UID),
		},
		Reason: d.Reason, Message: wording.Valid(d.Message), Writer: wording.Valid(d.Writer), ResourceVersion: wording.Valid(d.Version),
		FieldCount: int32(max(d.FieldCount, len(d.Fields))), SinceTime: prototime.New(d.Since), ReplicaId: s.member.ID,
	}
	for _, field := range d.Fields {
		converted.FieldChanges = append(converted.FieldChanges, &metav1.FieldChange{
			Path: value(field.Path), Before: value(field.Before), After: value(field.After),
		})
	}
	return converted
}

func kindOf(kind difference.Kind) shadowv1.Difference_Kind {
	return shadowv1.Difference_Kind(shadowv1.Difference_Kind_value["KIND_"+strings.ToUpper(string(kind))])
}

func value(s string) string { return wording.Valid(s[:min(len(s), difference.MaxValue)]) }
