package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/testkit"
)

// answer is what a script reads of GET /v1/status.
type answer struct {
	Partial bool
	Status  struct {
		Services []struct {
			Service, Leader string
			Healthy         bool
			Problems        []string
		}
		Sources []source
	}
}

type source struct {
	Replica       struct{ Service string }
	Ok            bool
	Code, Message string
}

func status(page string) (answer, error) {
	var reply answer
	code, body, err := fetch(page + "/v1/status")
	if err != nil {
		return reply, err
	}
	if code != http.StatusOK {
		return reply, fmt.Errorf("status: %d %s", code, body)
	}
	return reply, json.Unmarshal([]byte(body), &reply)
}

func (a answer) leads(service string) bool {
	for _, s := range a.Status.Services {
		if s.Service == service {
			return s.Leader != "" && s.Healthy
		}
	}
	return false
}

func TestGateway_FindsServersAndNamesTheOneThatIsKilled(t *testing.T) {
	cluster := testkit.Cluster(t)
	page := freeAddress(t)
	gateway := serveEtcd(t, cluster, "gateway", "--cluster=gateway", "--http-listen="+page)
	slicesvc := serve(t, cluster, "slicesvc", "--cluster=gateway")
	testkit.Eventually(t, 30*time.Second, func() error {
		reply, err := status("http://" + page)
		if err == nil && (reply.Partial || !reply.leads("slicesvc")) {
			err = fmt.Errorf("slicesvc does not lead yet: %+v", reply)
		}
		return err
	})

	slicesvc.stop(t, syscall.SIGKILL, 10*time.Second)
	testkit.Eventually(t, 4*time.Second, func() error { // its key in etcd stays for five seconds
		reply, err := status("http://" + page)
		if err != nil {
			return err
		}
		named := slices.ContainsFunc(reply.Status.Sources, func(s source) bool {
			return s.Replica.Service == "slicesvc" && !s.Ok && s.Code != "OK" && s.Message != ""
		})
		if !reply.Partial || !named {
			return fmt.Errorf("the killed slicesvc is not named: %+v", reply)
		}
		return nil
	})
	if code := gateway.stop(t, syscall.SIGTERM, 30*time.Second); code != 0 {
		t.Errorf("exit code = %d after SIGTERM, want 0", code)
	}
}
