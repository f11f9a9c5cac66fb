package index_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestKeysAfter_PagesAreTheKeysInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 7))
	x := index.New(slicetest.ManagedBy, 4)
	for range 300 {
		x.PutService(slicetest.Service(fmt.Sprintf("svc-%d", random.IntN(1000)), func(service *corev1.Service) {
			service.Namespace = fmt.Sprintf("ns-%d", random.IntN(4))
		}))
	}
	for _, within := range []string{"", "ns-0", "ns-3", "none"} {
		for _, limit := range []int{1, 2, 7, 100, 1000} {
			var got []index.Key
			for after := (index.Key{}); ; after = got[len(got)-1] {
				page := x.KeysAfter(within, after, limit)
				got = append(got, page...)
				if len(page) < limit {
					break
				}
			}
			if diff := cmp.Diff(x.Keys(within), got); diff != "" {
				t.Errorf("%q by %d (-want +got):\n%s", within, limit, diff)
			}
		}
	}
}

func TestKeysAfter_AnyPlaceMayBeGoneOnFrom(t *testing.T) {
	x := index.New(slicetest.ManagedBy, 4)
	x.PutService(slicetest.Service("web"))
	for name, c := range map[string]struct {
		within string
		after  index.Key
		want   []index.Key
	}{
		"before":              {after: index.Key{Namespace: "a", Name: "z"}, want: []index.Key{{Namespace: "shop", Name: "web"}}},
		"a service that went": {after: index.Key{Namespace: "shop", Name: "vase"}, want: []index.Key{{Namespace: "shop", Name: "web"}}},
		"itself":              {after: index.Key{Namespace: "shop", Name: "web"}},
		"behind":              {after: index.Key{Namespace: "z", Name: "a"}},
		"behind the one":      {within: "shop", after: index.Key{Namespace: "z", Name: "a"}},
	} {
		if diff := cmp.Diff(c.want, x.KeysAfter(c.within, c.after, 10)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
