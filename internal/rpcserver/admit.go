package rpcserver

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// Admit decides about a call to a full method before its request is decoded from another format
// than protobuf: by the limits of the caller in ctx, and by its right, if that needs no field but
// those given. The error is a gRPC status, and is logged. The owner calls release at the end of the
// call. Only a server with Deps.Admitted needs it. It waits until Serve has begun.
func (s *Server) Admit(ctx context.Context, fullMethod string, given map[string]string) (release func(), err error) {
	select {
	case <-s.compiled:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	caller := authn.FromContext(ctx)
	slot, err := s.quota.Admit(quota.CallerOf(caller), fullMethod, time.Now())
	if err == nil {
		if err = s.chain.authorizeGiven(ctx, caller, fullMethod, given); err == nil {
			return slot.Release, nil
		}
		slot.Release()
	}
	s.chain.logRefusal(ctx, fullMethod, err)
	return nil, err
}

// authorizeGiven decides about a call of which some fields are known. A right that needs another
// field is decided later.
func (c chain) authorizeGiven(ctx context.Context, caller *authn.Caller, method string, given map[string]string) error {
	err := c.authorizeMethod(caller, method)
	var request wanted
	if access := c.rules.access[method]; err == nil && access != nil && access.rule.GetResource() != nil {
		if access.name != nil {
			name, known := given[string(access.name.Name())]
			if !known {
				return nil
			}
			request.object = name
		}
		request.asked = access.asked(request.object)
		err = c.authorizeRequest(ctx, caller, method, request)
	}
	if err != nil {
		c.deny(caller, method, request, err)
	}
	return err
}

func (c chain) logRefusal(ctx context.Context, fullMethod string, err error) {
	code := status.Code(err)
	service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	fields := append([]any{"grpc.service", service, "grpc.method", method, "grpc.code", code.String(), "grpc.error", err.Error()}, errorFields(err)...)
	c.refusals.Log(ctx, levelOf(code), "refused call", fields...)
}

// MaxBytes returns the limit of a message of a method, in bytes.
func (s *Server) MaxBytes(fullMethod string) int {
	if limit, _ := s.quota.MaxBytes(fullMethod); limit > 0 {
		return limit
	}
	return s.cfg.MaxRecvBytes
}

// CheckValues returns why a JSON text has more values than a request of a type may have, before the
// text is decoded.
func CheckValues(text []byte, request protoreflect.MessageDescriptor) error {
	most := mostValues(request, 0)
	if values(text) <= most {
		return nil
	}
	return rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason,
		fmt.Sprintf("the body has too many values: %s may have %d", request.Name(), most))
}

// values returns at least the number of values in a JSON text. An empty object or list counts
// twice.
func values(text []byte) int {
	count, quoted := 1, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '[' || c == '{'):
			count++
		}
	}
	return count
}

// mostValues returns how many JSON values a message may have within the rules of its lists, as
// values counts.
func mostValues(message protoreflect.MessageDescriptor, depth int) int {
	if depth > maxDepth {
		return 0
	}
	most := 2
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		one := 1
		if inner := field.Message(); inner != nil {
			one += mostValues(inner, depth+1)
		}
		if field.Cardinality() == protoreflect.Repeated {
			items := mostItems(field)
			if items == 0 || one > math.MaxInt32/items {
				return math.MaxInt32
			}
			one = 2 + items*one
		}
		most = min(most+one, math.MaxInt32)
	}
	return most
}
