package guarded

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trivet-dev/trivet/internal/term"
)

func TestClassify(t *testing.T) {
	of := schema.GroupResource{Resource: "services"}
	neither := errors.New("neither")
	cases := map[string]struct {
		err, want error
	}{
		"changed meanwhile":        {err: apierrors.NewConflict(of, "a", errors.New("old")), want: ErrConflict},
		"there already":            {err: apierrors.NewAlreadyExists(of, "a"), want: ErrConflict},
		"gone":                     {err: apierrors.NewNotFound(of, "a"), want: ErrConflict},
		"throttled":                {err: apierrors.NewTooManyRequests("later", 1), want: ErrUnavailable},
		"broken inside":            {err: apierrors.NewInternalError(errors.New("etcd")), want: ErrUnavailable},
		"a list that grew too old": {err: apierrors.NewResourceExpired("old"), want: ErrUnavailable},
		"never reached":            {err: fmt.Errorf("dial: %w", context.DeadlineExceeded), want: ErrUnavailable},
		"forbidden":                {err: apierrors.NewForbidden(of, "a", errors.New("no")), want: neither},
		"invalid":                  {err: apierrors.NewBadRequest("no"), want: neither},
		"the term ended":           {err: fmt.Errorf("update: %w", term.ErrEnded), want: neither},
		"no term":                  {err: term.ErrNone, want: neither},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			got := Classify(test.err)
			if !errors.Is(got, test.err) {
				t.Errorf("%v does not wrap %v", got, test.err)
			}
			for _, class := range []error{ErrConflict, ErrUnavailable} {
				if errors.Is(got, class) != errors.Is(test.want, class) {
					t.Errorf("%v: is %q = %t", got, class, errors.Is(got, class))
				}
			}
		})
	}
	if err := Classify(nil); err != nil {
		t.Errorf("nil became %v", err)
	}
}

func TestClassifyEtcd_DenialIsNotUnavailability(t *testing.T) {
	unavailable := errors.New("etcd unavailable")
	for name, test := range map[string]struct{ err, want, not error }{
		"permission denied": {err: rpctypes.ErrPermissionDenied, want: ErrEtcdDenied, not: unavailable},
		"no user":           {err: rpctypes.ErrUserEmpty, want: ErrEtcdDenied, not: unavailable},
		"no leader":         {err: rpctypes.ErrNoLeader, want: unavailable, not: ErrEtcdDenied},
		"deadline":          {err: context.DeadlineExceeded, want: unavailable, not: ErrEtcdDenied},
	} {
		if got := ClassifyEtcd(test.err, unavailable); !errors.Is(got, test.want) || errors.Is(got, test.not) || !errors.Is(got, test.err) {
			t.Errorf("%s: %v, want one that wraps %v and its cause", name, got, test.want)
		}
	}
}
