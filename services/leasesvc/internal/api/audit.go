package api

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// AuditWriter records takeovers, releases and refused items. Write must not block. *audit.Log is
// one.
type AuditWriter interface{ Write(record audit.Record) }

func (s *Server) audit(record audit.Record) {
	if s.Audit != nil {
		s.Audit.Write(record)
	}
}

// reportRefused records the refused items of one message together, and counts them as messages of
// the sender, which may be nil.
func (s *Server) reportRefused(a *access, sender *sender, method string) {
	if a.refused == 0 {
		return
	}
	if sender != nil {
		sender.meter.countRefused(time.Now(), a.refused)
	}
	why := status.Convert(a.firstRefused).Message()
	if a.refused > 1 {
		why = fmt.Sprintf("%s; and %d more items of the message", why, a.refused-1)
	}
	s.audit(audit.Record{
		Caller: a.caller, Method: method, Object: s.convert.name(a.firstKey), Decision: audit.Denied, DecisionReason: why,
		Code: status.Code(a.firstRefused), Reason: string(rpcerror.ReasonOf(a.firstRefused)),
	})
}

// reportTakeover records that another boot has taken over a session.
func (s *Server) reportTakeover(caller *authn.Caller, method string, h session.Holder) {
	s.audit(audit.Record{
		Caller: caller, Method: method, Object: s.convert.name(h.Key), Decision: audit.Allowed,
		DecisionReason: fmt.Sprintf("boot %q took over the lease", h.Boot), Repeatable: true, Code: codes.OK,
	})
}

func (s *Server) reportRelease(caller *authn.Caller, request *leasev1.ReleaseLeaseRequest, key session.Key, err error, took time.Duration) {
	s.audit(audit.Record{
		Caller: caller, Method: leasev1.HeartbeatService_ReleaseLease_FullMethodName, Object: s.convert.name(key), RequestID: request.RequestId,
		Decision: audit.Allowed, Repeatable: true, Code: status.Code(err), Reason: string(rpcerror.ReasonOf(err)), Duration: took,
	})
}
