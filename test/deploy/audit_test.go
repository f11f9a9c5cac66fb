package deploy

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// auditPolicy makes kube-apiserver log every request with its user and the time of its answer.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
`

// auditLog is what a kube-apiserver wrote down so far.
type auditLog struct{ path string }

// startAudited starts a control plane of its own with an audit log, and in the two ways that ask
// most of a role: without streamed lists, for which watch alone would do, and with the admission
// plugin that asks for permission to have an owner wait for its dependents.
func startAudited(t *testing.T) (*devcluster.Cluster, auditLog) {
	t.Helper()
	policy, log := filepath.Join(t.TempDir(), "policy.yaml"), filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster, err := devcluster.Start(t.Context(), devcluster.Config{APIServerArgs: []string{
		"--audit-policy-file=" + policy,
		"--audit-log-path=" + log,
		"--feature-gates=WatchList=false",
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	return cluster, auditLog{path: log}
}

// auditEvent is the part of an audit.k8s.io/v1 Event that says what was asked, and what came of it.
type auditEvent struct {
	Verb string
	User struct{ Username string }
	// ObjectRef is empty for paths that are no objects, such as /readyz.
	ObjectRef      struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus struct{ Code int }
	Annotations    map[string]string
	RequestURI     string
}

// of returns the events of one user. A line that is still being written is left for the next call.
func (l auditLog) of(user string) ([]auditEvent, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var events []auditEvent
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		var event auditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, err
		}
		if event.User.Username == user {
			events = append(events, event)
		}
	}
}

// forbidden says whether authorization refused the request.
func (e auditEvent) forbidden() bool {
	return e.Annotations["authorization.k8s.io/decision"] == "forbid"
}

func (e auditEvent) String() string { return e.Verb + " " + e.RequestURI }

// grant is the smallest thing a role can give: one verb on one resource, in one namespace ("" for
// all of them), of one name ("" for all of them).
type grant struct{ verb, group, resource, namespace, name string }

func (g grant) String() string {
	return strings.Join([]string{g.verb, g.group + "/" + g.resource, "namespace=" + g.namespace, "name=" + g.name}, " ")
}

// grants takes rules apart.
func grants(namespace string, rules []rbacv1.PolicyRule) []grant {
	var all []grant
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						all = append(all, grant{verb: verb, group: group, resource: resource, namespace: namespace, name: name})
					}
				}
			}
		}
	}
	return all
}

// used says whether the event needed the grant and came through: a conflict or a missing object is
// a use, too.
func (g grant) used(e auditEvent) bool {
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return e.ResponseStatus.Code != http.StatusForbidden && e.Verb == g.verb && e.ObjectRef.APIGroup == g.group && resource == g.resource &&
		(g.namespace == "" || e.ObjectRef.Namespace == g.namespace) && (g.name == "" || e.ObjectRef.Name == g.name)
}

// unused returns the grants that no event used.
func unused(all []grant, events []auditEvent) []grant {
	return slices.DeleteFunc(slices.Clone(all), func(g grant) bool { return slices.ContainsFunc(events, g.used) })
}
