package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// answer is what a script reads of GET /v1/status.
type answer struct {
	Status struct {
		Verdict  verdict
		Services []struct {
			Service                   string
			Verdict                   verdict
			ShardCount, LedShardCount int
		}
	}
	Missing []part
}

type verdict struct {
	State    string
	Problems []problem
}

type problem struct{ Code, Severity, Resource, Message, Next string }

type part struct {
	Service, Code, Message string
	ReplicaID              string `json:"replicaId"`
}

// status asks as an administrator.
func status(page string) (answer, error) {
	i, err := issued()
	if err != nil {
		return answer{}, err
	}
	client, err := httpClient(i.admin)
	if err != nil {
		return answer{}, err
	}
	return statusBy(client, page)
}

func statusBy(client *http.Client, page string) (answer, error) {
	var reply answer
	code, body, err := fetchBy(client, page+"/v1/status")
	if err != nil {
		return reply, err
	}
	if code != http.StatusOK {
		return reply, fmt.Errorf("status: %d %s", code, body)
	}
	return reply, json.Unmarshal([]byte(body), &reply)
}

// leads reports whether every shard of a service has a leader and nothing of it fails.
func (a answer) leads(service string) bool {
	for _, s := range a.Status.Services {
		if s.Service == service {
			return s.ShardCount > 0 && s.LedShardCount == s.ShardCount && s.Verdict.State == "STATE_OK"
		}
	}
	return false
}

func TestGateway_FindsServersAndNamesTheOneThatIsKilled(t *testing.T) {
	cluster := testkit.Cluster(t)
	page := testkit.FreeAddress(t)
	gateway := serve(t, cluster, "gateway", "--cluster=gateway", "--http-listen="+page)
	slicesvc := serve(t, cluster, "slicesvc", "--cluster=gateway")
	testkit.Eventually(t, 30*time.Second, func() error {
		reply, err := status("https://" + page)
		if err == nil && !reply.leads("slicesvc") {
			err = fmt.Errorf("slicesvc does not lead yet: %+v", reply)
		}
		return err
	})

	slicesvc.stop(t, syscall.SIGKILL, 10*time.Second)
	testkit.Eventually(t, 4*time.Second, func() error { // its key in etcd stays for five seconds
		reply, err := status("https://" + page)
		if err != nil {
			return err
		}
		named := slices.ContainsFunc(reply.Missing, func(p part) bool {
			return p.Service == "slicesvc" && p.ReplicaID != "" && p.Code != "OK" && p.Message != ""
		})
		if !named || reply.Status.Verdict.State == "STATE_OK" {
			return fmt.Errorf("the killed slicesvc is not named: %+v", reply)
		}
		return nil
	})
	if code := gateway.stop(t, syscall.SIGTERM, 30*time.Second); code != 0 {
		t.Errorf("exit code = %d after SIGTERM, want 0", code)
	}
}
