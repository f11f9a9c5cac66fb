package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/httpaccesstest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

type historyJSON struct {
	ReplicaID, Interval string
	EndTime             time.Time
	Series              []struct {
		Service, Name string
		Values        []any
	}
}

func (h historyJSON) last(service, name string) any {
	for _, series := range h.Series {
		if series.Service == service && series.Name == name && len(series.Values) > 0 {
			return series.Values[len(series.Values)-1]
		}
	}
	return nil
}

// The gateway samples the status by itself. The counts of a service whose leader does not answer
// are gaps.
func TestHistory_IsSampledWithoutReaders(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(healthy(t, "leasesvc", "l1"), hanging(t, "slicesvc", "s1"), healthy(t, "gateway", "g1")), time.Second)
	var got historyJSON
	testkit.Eventually(t, 20*time.Second, func() error {
		answer, body := send(t, service, http.MethodGet, "/v1/status:history")
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", answer.Status, body)
		}
		got = historyJSON{}
		if err := json.Unmarshal(body, &got); err != nil {
			return err
		}
		if value := got.last("leasesvc", "leases"); value != 20.0 {
			return fmt.Errorf("leases of leasesvc is %v, want 20: %s", value, body)
		}
		return nil
	})
	if got.ReplicaID != "g1" || got.Interval != "5s" || time.Since(got.EndTime).Abs() > time.Minute {
		t.Errorf("the history is of %q, ends at %s and has a value every %s", got.ReplicaID, got.EndTime, got.Interval)
	}
	for _, want := range []struct {
		service, name string
		value         any
	}{
		{"leasesvc", "replicas_answering", 1.0}, {"slicesvc", "replicas_answering", 0.0},
		{"slicesvc", "leases", nil}, {"bootstrapsvc", "problems", 1.0},
	} {
		if value := got.last(want.service, want.name); value != want.value {
			t.Errorf("%s of %s is %v, want %v", want.name, want.service, value, want.value)
		}
	}
}

// The history needs the same right as the status.
func TestHistory_NeedsTheRightToTheStatus(t *testing.T) {
	t.Parallel()
	callers := httpaccesstest.New(t)
	g := startSecured(t, callers, newDirectory(), filesOf(t, callers.Authority, "gateway", certs.GatewayGroup))
	for caller, want := range map[httpaccesstest.Caller]int{
		httpaccesstest.None: http.StatusUnauthorized, httpaccesstest.Stranger: http.StatusForbidden, httpaccesstest.Viewer: http.StatusOK,
	} {
		response, err := callers.Client(caller).Get("https://" + g.service.HTTPAddress() + "/v1/status:history")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%v gets %d, want %d", caller, response.StatusCode, want)
		}
	}
}
