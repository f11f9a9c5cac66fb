package kubeconn

import (
	"errors"
	"io"
	"net"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxOutagePause bounds the pause before a request is repeated that failed because kube-apiserver
// was away, unless kube-apiserver asks for more. All work is then done soon after it is back,
// however long it was away. The number of requests at a time is bounded elsewhere.
const MaxOutagePause = 5 * time.Second

// Unavailable reports whether a request failed because kube-apiserver could not answer any such
// request, so that the same one may succeed later: the connection failed, the answer is late, or it
// says that kube-apiserver is unavailable. A resourceVersion that kube-apiserver does not have yet
// is no such failure, nor is what an admission webhook says, or that it does not answer: others,
// which it does not select, may succeed.
func Unavailable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		var network net.Error // *url.Error, which has each failure of a connection, is one
		return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	}
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), OfWebhook(err):
		return false
	default:
		return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
			apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
	}
}

// OfWebhook reports whether a webhook has refused a request, or could not be called. Only the text
// tells: kube-apiserver passes on any code that a webhook gives.
func OfWebhook(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	text := status.Status().Message
	return strings.Contains(text, "failed calling webhook ") || strings.HasPrefix(text, "admission webhook ")
}
