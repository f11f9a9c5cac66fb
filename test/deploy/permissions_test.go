package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// settled is how long a kube-apiserver may take to use a role or a policy that was just written.
const settled = 30 * time.Second

// impersonate returns a client of the shared cluster that acts as a user.
func impersonate(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(testkit.Cluster(t).RESTConfig())
	config.WarningHandler = rest.NoWarnings{}
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// kubelet returns a client that acts as a node.
func kubelet(t *testing.T, node string) kubernetes.Interface {
	t.Helper()
	return impersonate(t, "system:node:"+node, "system:nodes")
}

// portForward asks for a connection to a Pod that does not exist.
func portForward(kube kubernetes.Interface, verb, namespace string) func(context.Context) error {
	return func(ctx context.Context) error {
		request := kube.CoreV1().RESTClient().Verb(verb).Namespace(namespace).Resource("pods").Name("none").SubResource("portforward")
		return request.Do(ctx).Error()
	}
}

// expectRights fails unless each allowed request is authorized, and each other one is not.
func expectRights(t *testing.T, allowed, denied map[string]func(context.Context) error) {
	t.Helper()
	for name, request := range allowed {
		testkit.Eventually(t, settled, func() error {
			if err := request(t.Context()); apierrors.IsForbidden(err) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	for name, request := range denied {
		if err := request(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

// A person with trivet-port-forward has what `trivet` needs to reach the gateway, and not more.
func TestPortForward_RoleIsEnoughAndReachesNothingElse(t *testing.T) {
	applyRoles(t, testkit.Cluster(t), render(t, "base"))
	roles := testkit.Kube(t).RbacV1().RoleBindings(system)
	binding, err := roles.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-port-forward-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "trivet-port-forward"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = roles.Delete(context.Background(), binding.Name, metav1.DeleteOptions{}) })
	ann := impersonate(t, "ann")
	core := ann.CoreV1()
	expectRights(t, map[string]func(context.Context) error{
		"list the Pods of the gateway": func(ctx context.Context) error {
			_, err := core.Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=gateway"})
			return err
		},
		"read the authorities": func(ctx context.Context) error {
			_, err := core.ConfigMaps(system).Get(ctx, "trivet-ca", metav1.GetOptions{})
			return err
		},
		"port-forward by SPDY":      portForward(ann, "POST", system),
		"port-forward by WebSocket": portForward(ann, "GET", system),
	}, map[string]func(context.Context) error{
		"read another ConfigMap": func(ctx context.Context) error {
			_, err := core.ConfigMaps(system).Get(ctx, "trivet-settings", metav1.GetOptions{})
			return err
		},
		"read a Secret": func(ctx context.Context) error {
			_, err := core.Secrets(system).Get(ctx, "trivet-ca", metav1.GetOptions{})
			return err
		},
		"delete a Pod": func(ctx context.Context) error { return core.Pods(system).Delete(ctx, "none", metav1.DeleteOptions{}) },
		"exec in a Pod": func(ctx context.Context) error {
			return core.RESTClient().Post().Namespace(system).Resource("pods").Name("none").SubResource("exec").Do(ctx).Error()
		},
		"port-forward elsewhere": portForward(ann, "POST", "kube-system"),
	})
}

// A kubelet, and the account of the DaemonSet, find leasesvc and the kube-apiservers, and learn of
// no other endpoint.
func TestAgents_ReadTheEndpointsThatTheyNeed(t *testing.T) {
	applyRoles(t, testkit.Cluster(t), render(t, withAgent))
	for name, kube := range map[string]kubernetes.Interface{
		"kubelet": kubelet(t, "agent-node"),
		"account": impersonate(t, username("trivet-agent"), "system:serviceaccounts", "system:serviceaccounts:"+system),
	} {
		t.Run(name, func(t *testing.T) {
			slices := kube.DiscoveryV1().EndpointSlices
			list := func(namespace string) func(context.Context) error {
				return func(ctx context.Context) error {
					_, err := slices(namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=leasesvc"})
					return err
				}
			}
			expectRights(t, map[string]func(context.Context) error{
				"list those of leasesvc": list(system),
				"get that of the kube-apiservers": func(ctx context.Context) error {
					_, err := slices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
					return err
				},
			}, map[string]func(context.Context) error{
				"list those of another namespace": list("default"),
				"list those of the cluster":       list(""),
				"delete one": func(ctx context.Context) error {
					return slices(system).Delete(ctx, "none", metav1.DeleteOptions{})
				},
			})
		})
	}
}

// A server on the machines has the roles of its account, as the user of its kubeconfig, and the
// account has none.
func TestStaticPods_UsersHaveTheRolesOfTheAccounts(t *testing.T) {
	for tree, moved := range map[string]struct {
		from    string
		servers []string
	}{
		"overlays/sidecar":     {"base", []string{"bootstrapsvc"}},
		"overlays/static-pods": {"base", []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"}},
		staticEverything:       {everything, []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"}},
	} {
		t.Run(strings.ReplaceAll(tree, "/", "_"), func(t *testing.T) {
			want, got := subjects(t, moved.from), subjects(t, tree)
			for binding, subjects := range want {
				var expected []string
				for _, subject := range subjects {
					server := strings.TrimPrefix(subject, "ServiceAccount/")
					if slices.Contains(moved.servers, server) {
						subject = "User/trivet:" + server
					}
					expected = append(expected, subject)
				}
				if !slices.Equal(got[binding], expected) {
					t.Errorf("%s binds %v, want %v", binding, got[binding], expected)
				}
			}
		})
	}
}

// Endpoints are watched only where the loop that mirrors them is on: the component brings its
// rights and the loop together, and the manifests without it have neither.
func TestMirroring_TheLoopAndItsRightsGoTogether(t *testing.T) {
	rights := func(tree string) []string {
		var found []string
		for _, g := range grantsOf(t, render(t, tree), "slicesvc") {
			if strings.HasPrefix(g.resource, "endpoints") && g.group == "" {
				found = append(found, g.resource+" "+g.verb)
			}
		}
		return found
	}
	loops := func(tree string) string {
		objects := render(t, tree)
		for _, server := range servers(pods(t, objects)["slicesvc"]) {
			return server.settings(t, objects)["loops"]
		}
		t.Fatalf("%s has no slicesvc", tree)
		return ""
	}
	want := []string{"endpoints list", "endpoints watch"} // and endpoints/finalizers, which grantsOf leaves out
	for tree, mirrors := range map[string]bool{
		"base": false, "overlays/standalone": false, "overlays/sidecar": false, "overlays/static-pods": false, everything: true, staticEverything: true,
	} {
		if got := rights(tree); mirrors != slices.Equal(got, want) || !mirrors && len(got) > 0 {
			t.Errorf("%s grants %q, and mirrors: %v", tree, got, mirrors)
		}
	}
	for tree, mirrors := range map[string]bool{
		"base": false, "overlays/standalone": false, everything: true, "static-pods/slicesvc": false, mirroringPod: true,
	} {
		if got := loops(tree); mirrors != (got == "*,"+slicesvc.MirrorLoopName) || !mirrors && got != "" {
			t.Errorf("%s has loops %q, and mirrors: %v", tree, got, mirrors)
		}
	}
}

// What component endpointslice-mirroring grants is enough to read Endpoints, and not to change
// them.
func TestMirroring_MayReadEndpointsAndChangeNone(t *testing.T) {
	applyRoles(t, testkit.Cluster(t), render(t, everything))
	account := impersonate(t, username("slicesvc"), "system:serviceaccounts", "system:serviceaccounts:"+system)
	endpoints := account.CoreV1().Endpoints("default")
	object := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
	expectRights(t, map[string]func(context.Context) error{
		"list Endpoints": func(ctx context.Context) error {
			_, err := account.CoreV1().Endpoints("").List(ctx, metav1.ListOptions{})
			return err
		},
	}, map[string]func(context.Context) error{
		"create Endpoints": func(ctx context.Context) error {
			_, err := endpoints.Create(ctx, object, metav1.CreateOptions{})
			return err
		},
		"update Endpoints": func(ctx context.Context) error {
			_, err := endpoints.Update(ctx, object, metav1.UpdateOptions{})
			return err
		},
		"delete Endpoints": func(ctx context.Context) error { return endpoints.Delete(ctx, "none", metav1.DeleteOptions{}) },
	})
}

// subjects are the subjects of each binding of a tree, as kind/name.
func subjects(t *testing.T, tree string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	add := func(kind, namespace, name string, all []rbacv1.Subject) {
		for _, subject := range all {
			key := kind + "/" + namespace + "/" + name
			found[key] = append(found[key], subject.Kind+"/"+subject.Name)
		}
	}
	objects := render(t, tree)
	for _, binding := range ofKind[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding") {
		add("ClusterRoleBinding", "", binding.Name, binding.Subjects)
	}
	for _, binding := range ofKind[rbacv1.RoleBinding](t, objects, "RoleBinding") {
		add("RoleBinding", binding.Namespace, binding.Name, binding.Subjects)
	}
	return found
}
