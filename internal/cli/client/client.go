// Package client is the gateway's client for all commands: common flags, one connection, one call,
// and the errors that end a command without an answer.
//
// Without an address, a command calls the gateway of a local `trivet-lab up`, else the gateway in
// the cluster of the kubeconfig through kube-apiserver. A gateway is called with TLS and a client
// certificate or a token; one on loopback in plaintext unless TLS flags are given.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// Flags are the flags of every command that calls the gateway.
type Flags struct {
	OutputFlags

	Gateway Gateway
	// Timeout limits one call. Its value before Register is the flag's default; 0 means 10 s.
	Timeout time.Duration
	// Diff says that exit code 1 of the command means changes, so that it has another code for an
	// object that does not exist.
	Diff bool
}

// Register adds the flags and their shell completion to a command. The forms are those of
// [OutputFlags.Register].
func (f *Flags) Register(command *cobra.Command, streams printer.Streams, forms ...string) {
	f.OutputFlags.Register(command, streams, forms...)
	fs := command.Flags()
	f.Gateway.RegisterFlags(fs, streams.Env)
	fs.DurationVar(&f.Timeout, "timeout", cmp.Or(f.Timeout, 10*time.Second), "Timeout of one call to the gateway.")
	mustComplete(command, "context", f.Gateway.completeContext)
	mustComplete(command, "trivet-namespace", cobra.NoFileCompletions)
}

// Validate returns all problems, each with its flag.
func (f *Flags) Validate() []error {
	problems := append(f.Gateway.Validate(), f.OutputFlags.Validate()...)
	if f.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout=%s: must be positive", f.Timeout))
	}
	return problems
}

// OneOf returns an error if the value of a flag is none of the known ones.
func OneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("%s=%q: must be one of %s", flag, value, strings.Join(known, ", "))
}

// EachOf returns an error for the first value of a repeated flag that is none of the known ones.
func EachOf(flag string, values []string, known ...string) error {
	for _, value := range values {
		if err := OneOf(flag, value, known...); err != nil {
			return err
		}
	}
	return nil
}

// Connect returns a connection to the gateway, which the caller closes. It connects with the first
// call.
func (f *Flags) Connect() (*grpc.ClientConn, error) { return f.Gateway.Dial() }

// Call connects, makes one call within --timeout, and closes the connection. In a cluster the call
// is made once more if its gateway ends, which another one may answer. If it fails, the error is
// that of [Flags.NoAnswer] for the given subject, such as "status".
func Call[Response any](ctx context.Context, f *Flags, subject string, call func(context.Context, grpc.ClientConnInterface) (Response, error)) (Response, error) {
	return callRepeatedly(ctx, f, subject, func(err error, attempt int) bool {
		return attempt == 1 && f.Gateway.mayHaveAnother() && (isLost(err) || rpcerror.ReasonOf(err) == rpcerror.ShuttingDownReason)
	}, call)
}

// mayHaveAnother reports whether the next connection may be to another gateway. A failure with a
// code is one of the way to all of them.
func (g *Gateway) mayHaveAnother() bool {
	if g.Server != "" {
		return false
	}
	_, coded := errors.AsType[*exit.Error](g.link.lastFailure())
	return !coded
}

// awaitReady returns when a connection is there again, after reconnectTime at most. Until then gRPC
// answers calls with the former failure.
func awaitReady(ctx context.Context, conn *grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(ctx, reconnectTime)
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready && conn.WaitForStateChange(ctx, state); {
		state = conn.GetState()
	}
}

// callRepeatedly makes a call again while again says so of its error.
func callRepeatedly[Response any](
	ctx context.Context, f *Flags, subject string, again func(err error, attempt int) bool, call func(context.Context, grpc.ClientConnInterface) (Response, error),
) (Response, error) {
	var none Response
	conn, err := f.Connect()
	if err != nil {
		return none, err
	}
	defer conn.Close()
	callCtx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	progress := f.Slow("waiting for the " + subject + " from " + f.Gateway.Where())
	response, err := call(callCtx, conn)
	for attempt := 1; err != nil && again(err, attempt) && backoff.Sleep(callCtx, attemptPause); attempt++ {
		awaitReady(callCtx, conn)
		response, err = call(callCtx, conn)
	}
	progress.Stop()
	if err != nil {
		return none, f.NoAnswer(ctx, subject, err)
	}
	return response, nil
}

const (
	// mutationAttempts is how often a mutation is tried when the connection is lost.
	mutationAttempts = 3
	// attemptPause is the pause between two attempts of a call.
	attemptPause = 500 * time.Millisecond
	// reconnectTime is how long an attempt waits for a connection.
	reconnectTime = 2 * time.Second
)

// Mutate calls like [Call], with a new request ID. While the connection is lost, it repeats the
// call with the same ID, which the server answers with its first answer. It does not repeat a call
// that a server has refused.
func Mutate[Response any](ctx context.Context, f *Flags, subject string, call func(ctx context.Context, conn grpc.ClientConnInterface, requestID string) (Response, error)) (Response, error) {
	requestID := uuid.NewString()
	return callRepeatedly(ctx, f, subject, func(err error, attempt int) bool { return attempt < mutationAttempts && isLost(err) },
		func(ctx context.Context, conn grpc.ClientConnInterface) (Response, error) {
			return call(ctx, conn, requestID)
		})
}

// isLost reports whether a connection was lost, so that the call may have been carried out or not.
// Unavailable with any other reason is the answer of a server.
func isLost(err error) bool {
	reason := rpcerror.ReasonOf(err)
	return status.Code(err) == codes.Unavailable && (reason == "" || reason == "UNAVAILABLE")
}

// NoAnswer returns the error of a command that got no answer: interrupted if ctx is done, else
// undetermined.
func (f *Flags) NoAnswer(ctx context.Context, subject string, err error) error {
	if ctx.Err() != nil {
		return Interrupted()
	}
	answer := &exit.Error{Code: exit.Undetermined, Summary: fmt.Sprintf("no %s from %s", subject, f.Gateway.Where()), Err: err}
	if status.Code(err) == codes.NotFound && !f.Diff { // which is the answer
		answer.Code = exit.Findings
	}
	if isLost(err) || status.Code(err) == codes.Unauthenticated && rpcerror.ReasonOf(err) == "" || status.Code(err) == codes.DeadlineExceeded {
		answer.Try, answer.Err = f.Gateway.explain(err)
		if cause, ok := errors.AsType[*exit.Error](answer.Err); ok {
			answer.Code = cause.Code
		}
	}
	return answer
}

// CannotPrint returns the error of a command that could not write its answer.
func CannotPrint(subject string, err error) error {
	return &exit.Error{Code: exit.Undetermined, Summary: "print the " + subject, Err: err}
}

// Interrupted returns the error of an interrupted command, which prints nothing.
func Interrupted() error { return &exit.Error{Code: exit.Interrupted} }
