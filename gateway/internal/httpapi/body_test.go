package httpapi_test

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/gateway/internal/httpapi"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/test/lab/httpaccesstest"
)

// Whatever a body says, one request needs at most sixteen times the memory of its limit.
func TestServe_MemoryOfOneBodyIsBoundedByItsLimit(t *testing.T) {
	table := quota.Methods()
	for name, limit := range table {
		limit.Rate, limit.Burst, limit.InFlight = 1e6, 1e6, 1000
		table[name] = limit
	}
	limits, err := quota.New(table, nil)
	if err != nil {
		t.Fatal(err)
	}
	address, _ := servingWith(t, httpapi.Config{Cluster: "test", Register: withoutHandlers, Page: page, Logger: slog.New(slog.DiscardHandler), Quota: limits})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	posts, worst := 0, 0.0
	for _, p := range paths(t) {
		if p.verb != http.MethodPost {
			continue
		}
		limit := table[fmt.Sprintf("/%s/%s", p.method.Parent().FullName(), p.method.Name())].MaxBytes
		for _, size := range []int{limit, 1 << 20} {
			for _, body := range bodiesOf(p.method.Input(), size) {
				posts++
				used := uint64(math.MaxUint64)
				for range 3 {
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					sendAs(t, client, p.verb, address+p.path, body, nil)
					runtime.ReadMemStats(&after)
					used = min(used, after.TotalAlloc-before.TotalAlloc)
				}
				if used > uint64(16*limit) {
					t.Errorf("%s with %d bytes of %.30q…: %d bytes were allocated, more than 16 times the limit of %d", p.path, len(body), body, used, limit)
				}
				worst = max(worst, float64(used)/float64(limit))
			}
		}
	}
	t.Logf("%d bodies, at most %.1f times the limit", posts, worst)
	if posts < 20 {
		t.Error("too few bodies were tried")
	}
}

// bodiesOf returns bodies of a size that have one field of a request with as many values as fit.
func bodiesOf(request protoreflect.MessageDescriptor, size int) []string {
	bodies := []string{strings.Repeat("[", size), `{"x":"` + strings.Repeat("a", size) + `"}`, "{" + strings.Repeat(`"":0,`, size/5) + `"":0}`}
	for i := range request.Fields().Len() {
		field := request.Fields().Get(i)
		for _, value := range []string{`""`, "0", "{}", "[]"} {
			bodies = append(bodies,
				fmt.Sprintf("{%q:[%s%s]}", field.JSONName(), strings.Repeat(value+",", (size-40)/(len(value)+1)), value),
				fmt.Sprintf("{%q:%s}", field.JSONName(), `"`+strings.Repeat("a", size-40)+`"`))
		}
	}
	return bodies
}

// A caller without the right learns nothing of its body, which is not read.
func TestServe_BodyIsNotReadWithoutTheRight(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := servingTLS(t, callers, withoutHandlers)
	for caller, want := range map[httpaccesstest.Caller]int{httpaccesstest.Viewer: http.StatusForbidden, httpaccesstest.Admin: http.StatusBadRequest} {
		if response, body := sendAs(t, callers.Client(caller), http.MethodPost, address+"/v1/repairplans", "no JSON", nil); response.StatusCode != want {
			t.Errorf("%s: %s %s, want %d", caller, response.Status, body, want)
		}
	}
}
