package errorclass

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/term"
)

var (
	// ErrConflict: the object is not, or no longer, what was known of it.
	ErrConflict = errors.New("object changed meanwhile")
	// ErrUnavailable: the apiserver did not answer, or answered that it cannot now.
	ErrUnavailable = errors.New("kube-apiserver unavailable")
)

// Classify adds one of the two to an error of a client, where one fits. The end of a term is neither; nil stays nil.
func Classify(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case errors.Is(err, term.ErrEnded), errors.Is(err, term.ErrNone):
		return err
	case isPassing(err):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		return err
	}
}

// isPassing tells what goes by by itself. An error without a status of the apiserver never reached one. A continued list
// that is too old begins anew.
func isPassing(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsResourceExpired(err)
}
