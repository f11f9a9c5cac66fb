package kubeconn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trivet-dev/trivet/internal/kubeconn"
)

func TestUnavailable(t *testing.T) {
	tooNew := apierrors.NewTimeoutError("Too large resource version", 1)
	tooNew.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	webhookBusy := apierrors.NewServiceUnavailable(`admission webhook "policy.example" denied the request: starting`)
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"none":              {nil, false},
		"refused":           {fmt.Errorf("patch: %w", &url.Error{Op: "Patch", Err: syscall.ECONNREFUSED}), true},
		"broken answer":     {fmt.Errorf("list: %w", io.ErrUnexpectedEOF), true},
		"late":              {context.DeadlineExceeded, true},
		"unavailable":       {apierrors.NewServiceUnavailable("starting"), true},
		"throttled":         {apierrors.NewTooManyRequests("busy", 1), true},
		"etcd away":         {apierrors.NewInternalError(errors.New("etcdserver: no leader")), true},
		"joined":            {errors.Join(apierrors.NewServiceUnavailable("starting")), true},
		"version too new":   {tooNew, false},
		"webhook away":      {apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example": failed to call webhook: connection refused`)), false},
		"webhook refuses":   {webhookBusy, false},
		"no right":          {apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil), false},
		"conflict":          {apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "", nil), false},
		"panic of our own":  {errors.New("panic: index out of range"), false},
		"end of the caller": {context.Canceled, false},
	} {
		if got := kubeconn.Unavailable(c.err); got != c.want {
			t.Errorf("%s: Unavailable(%v) = %v, want %v", name, c.err, got, c.want)
		}
	}
}
