package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// callersAtOnce bounds the load on the kube-apiserver.
const callersAtOnce = 8

// cell is one decision of the table.
type cell struct {
	caller caller
	method method
	want   answer
	got    answer
	said   string
}

func (c cell) String() string {
	return fmt.Sprintf("%s %s, %s: %s (%s), want %s", c.method.server, c.method.name, c.caller.name, c.got, c.said, c.want)
}

// Every method of every server, for every kind of caller, is decided as the table says.
func TestAccess_EveryMethodForEveryCaller(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	columns := callers()
	admin := columns[slices.IndexFunc(columns, func(c caller) bool { return c.name == "admin" })].connect(t, w)
	methods := methodsOf(t, admin)
	for _, m := range methods {
		if kindOf(m.name) == "" {
			t.Errorf("the table does not know %s: add it to kinds", m.name)
		}
	}
	var mu sync.Mutex
	var cells []cell
	var group errgroup.Group
	group.SetLimit(callersAtOnce)
	for _, column := range columns {
		as := column.connect(t, w)
		group.Go(func() error {
			for _, m := range methods {
				got, said := as.call(t, m, requestOf(t, m))
				mu.Lock()
				cells = append(cells, cell{caller: column, method: m, want: expected(may, column.right, kindOf(m.name)), got: got, said: said})
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	checkCells(t, cells)
	t.Logf("%d methods of %d servers, %d callers, %d cells in %v: %s", len(methods), len(w.addresses), len(columns), len(cells),
		time.Since(began).Round(time.Millisecond), counts(cells))
	checkCommands(t, cells)
}

func checkCells(t *testing.T, cells []cell) {
	t.Helper()
	for _, c := range cells {
		if c.got != c.want {
			t.Error(c)
		}
		if kind := kindOf(c.method.name); c.got == notAuthorized && (kind == read || kind == readScoped || kind == change) && commandIn(c.said) == nil {
			t.Errorf("%v: the refusal has no command that shows it", c)
		}
	}
}

func counts(cells []cell) string {
	found := map[answer]int{}
	for _, c := range cells {
		found[c.got]++
	}
	var parts []string
	for _, a := range slices.Sorted(maps.Keys(found)) {
		parts = append(parts, fmt.Sprintf("%d %s", found[a], a))
	}
	return strings.Join(parts, ", ")
}

// commandIn returns the words of the command in a refusal, without `kubectl auth can-i`.
func commandIn(text string) []string {
	_, command, found := strings.Cut(text, "kubectl auth can-i ")
	if !found {
		return nil
	}
	return strings.Fields(command)
}

// checkCommands runs the commands of refused cells as kubectl does: its answer is no, and yes for a
// user with the right.
func checkCommands(t *testing.T, cells []cell) {
	t.Helper()
	asked := map[string]bool{}
	for _, c := range cells {
		words := commandIn(c.said)
		line := strings.Join(words, " ")
		if c.got != notAuthorized || words == nil || strings.HasPrefix(words[1], "/") || asked[line] {
			continue
		}
		asked[line] = true
		review, user, groups := reviewOf(words)
		if allows(t, review, user, groups) {
			t.Errorf("%v: the command says yes", c)
		}
		if !allows(t, review, "operator", nil) {
			t.Errorf("%v: the command says no for an operator, too, although an operator may", c)
		}
	}
	t.Logf("%d different commands of refusals agree with the kube-apiserver", len(asked))
	if len(asked) == 0 {
		t.Error("no refusal had a command")
	}
}

// reviewOf reads a command. kubectl asks for a resource that discovery does not know by its whole
// name, without a group.
func reviewOf(words []string) (review authorizationv1.ResourceAttributes, user string, groups []string) {
	resource, name, _ := strings.Cut(words[1], "/")
	review = authorizationv1.ResourceAttributes{Verb: words[0], Resource: resource, Name: name}
	for i := 2; i+1 < len(words); i++ {
		switch words[i] {
		case "-n":
			review.Namespace = words[i+1]
		case "--as":
			user = words[i+1]
		case "--as-group":
			groups = append(groups, words[i+1])
		}
	}
	return review, user, groups
}

func allows(t *testing.T, review authorizationv1.ResourceAttributes, user string, groups []string) bool {
	t.Helper()
	config := testkit.Cluster(t).RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := kube.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &review}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return reply.Status.Allowed
}
