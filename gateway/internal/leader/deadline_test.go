package leader_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
)

// What rpcserver.translate makes of a deadline inside a handler: the leader may have written.
func TestWrite_DeadlineOfTheReplica(t *testing.T) {
	s := newService(t, map[string]error{
		"a:1": rpcerror.New(codes.DeadlineExceeded, "DEADLINE_EXCEEDED", "the call ended before its work did"),
		"b:1": notLeader("a:1"),
	}, "a", "b")
	calls := map[string]int{}
	_, err := leader.Write(t.Context(), s.router(), "leader", true, func(ctx context.Context, conn grpc.ClientConnInterface, m term.Member) (string, error) {
		calls[m.ID]++
		_, err := s.answer(ctx, conn, m)
		if err != nil && rpcerror.ReasonOf(err) == "" {
			err = fanout.LostError{Err: err} // as writeCall of package api
		}
		return "", err
	})
	t.Logf("calls %v, error %#v", calls, err)
	if calls["a"] != 1 || calls["b"] != 0 {
		t.Errorf("calls %v, want one of a", calls)
	}
	var unreachable leader.UnreachableError
	if !errors.As(err, &unreachable) || !unreachable.Lost {
		t.Errorf("error %v does not say that the write may have been carried out", err)
	}
}
