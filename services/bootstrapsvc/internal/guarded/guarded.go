// Package guarded has what the stores of this service share: the etcd transaction that requires a
// term, and the classification of a Kubernetes client's errors by what the caller must do.
package guarded

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/term"
)

var (
	// ErrConflict: the object is not the one that the caller read. Plan again.
	ErrConflict = errors.New("object changed meanwhile")
	// ErrUnavailable: kube-apiserver did not answer, or answered that it cannot serve the request
	// now. Retry later.
	ErrUnavailable = errors.New("kube-apiserver unavailable")
	// ErrEtcdDenied: etcd answered that this client may not do that. An operator must extend the
	// role of its user.
	ErrEtcdDenied = errors.New("etcd denies access; extend the role of the client's user (docs/deployment.md has it)")
)

// ClassifyEtcd wraps an error of an etcd client with ErrEtcdDenied if etcd denies access, else with
// unavailable. The client's error stays in the chain.
func ClassifyEtcd(err, unavailable error) error {
	for _, denied := range []error{
		rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthFailed,
	} {
		if errors.Is(err, denied) {
			return fmt.Errorf("%w: %w", ErrEtcdDenied, err)
		}
	}
	return fmt.Errorf("%w: %w", unavailable, err)
}

// Classify wraps an error of a Kubernetes client with ErrConflict or ErrUnavailable if one applies.
// It returns nil for nil, and the end of a term unchanged. The client's error stays in the chain.
func Classify(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case errors.Is(err, term.ErrEnded), errors.Is(err, term.ErrNone):
		return err
	case isTransient(err):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		return err
	}
}

// isTransient reports whether a retry may succeed. An error without a status of kube-apiserver
// never reached one. An expired continue token only requires a new list.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsResourceExpired(err)
}

// Transaction is a set of etcd writes that requires the term of its context.
type Transaction struct {
	Conditions []clientv3.Cmp
	Writes     []clientv3.Op
	// Conflict is returned if the conditions do not hold, Unavailable wraps an error of etcd.
	Conflict, Unavailable error
}

// Commit makes all writes at once, or none, in a transaction that begin returns. It blocks until
// etcd answers or ctx ends. The error wraps term.ErrNone or term.ErrEnded without a term. After
// Unavailable, the writes may have happened.
func (t Transaction) Commit(ctx context.Context, begin func(context.Context) clientv3.Txn) (revision int64, err error) {
	held, ok := term.FromContext(ctx)
	if !ok {
		return 0, term.ErrNone
	}
	if err := held.Check(); err != nil {
		return 0, err
	}
	response, err := begin(ctx).If(append(t.Conditions, held.Guard())...).Then(t.Writes...).
		Else(clientv3.OpTxn([]clientv3.Cmp{held.Guard()}, nil, nil)).Commit()
	switch {
	case err != nil:
		return 0, ClassifyEtcd(err, t.Unavailable)
	case response.Succeeded:
		return response.Header.Revision, nil
	case !response.Responses[0].GetResponseTxn().Succeeded:
		return 0, fmt.Errorf("%w: its key is gone from etcd", term.ErrEnded)
	default:
		return 0, t.Conflict
	}
}
