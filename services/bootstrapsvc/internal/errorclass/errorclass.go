// Package errorclass classifies the errors of a Kubernetes client by what the caller must do: plan
// again, retry later, or give up, because the request is forbidden or invalid. The client's error
// stays in the chain.
package errorclass

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/term"
)

var (
	// ErrConflict: the object is not the one that the caller read. Plan again.
	ErrConflict = errors.New("object changed meanwhile")
	// ErrUnavailable: kube-apiserver did not answer, or answered that it cannot serve the request
	// now. Retry later.
	ErrUnavailable = errors.New("kube-apiserver unavailable")
)

// Classify wraps an error of a Kubernetes client with ErrConflict or ErrUnavailable if one applies.
// It returns nil for nil, and the end of a term unchanged.
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
