package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

const day = 24 * time.Hour

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fixture is a cluster in memory that checks resource versions, and the cluster's client authority.
type fixture struct {
	t       *testing.T
	kube    *fake.Clientset
	version int
	cluster *certs.Authority
	out     strings.Builder
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	authority, err := certs.NewAuthority("kubernetes", certs.AuthorityLifetime, start)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, cluster: authority, kube: fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication", Namespace: "kube-system"},
		Data:       map[string]string{"client-ca-file": string(authority.CertPEM())},
	})}
	// The fake clientset neither counts nor compares resource versions.
	f.kube.PrependReactor("*", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		switch action.GetVerb() {
		case "update":
			return f.check(action.(k8stesting.UpdateAction))
		case "create":
			f.version++
			action.(k8stesting.CreateAction).GetObject().(metav1.Object).SetResourceVersion(fmt.Sprint(f.version))
		}
		return false, nil, nil
	})
	return f
}

func (f *fixture) check(update k8stesting.UpdateAction) (bool, runtime.Object, error) {
	object := update.GetObject().(metav1.Object)
	stored, err := f.kube.Tracker().Get(update.GetResource(), update.GetNamespace(), object.GetName())
	if err != nil {
		return true, nil, err
	}
	if stored.(metav1.Object).GetResourceVersion() != object.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(update.GetResource().GroupResource(), object.GetName(), nil)
	}
	f.version++
	object.SetResourceVersion(fmt.Sprint(f.version))
	return false, nil, nil
}

func settingsOf(t *testing.T, change func(*options)) settings {
	t.Helper()
	opts := defaults()
	opts.includeClusterClientCA = true
	if change != nil {
		change(&opts)
	}
	s, err := opts.settings(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f *fixture) objects() *cluster { return &cluster{kube: f.kube, namespace: "trivet-system"} }

// apply runs apply at a time and returns the writes that it made.
func (f *fixture) apply(s settings, now time.Time) ([]string, error) {
	f.t.Helper()
	f.kube.ClearActions()
	f.out.Reset()
	err := applyRepeatedly(f.t.Context(), f.objects(), s, func() time.Time { return now }, func(c change) { fmt.Fprintln(&f.out, c) })
	return f.writes(), err
}

func (f *fixture) writes() []string {
	var writes []string
	for _, action := range f.kube.Actions() {
		if action.GetVerb() != "get" {
			writes = append(writes, action.GetVerb()+" "+nameOf(action))
		}
	}
	return writes
}

// nameOf returns the resource and the name of the object.
func nameOf(action k8stesting.Action) string {
	switch action := action.(type) {
	case k8stesting.UpdateAction: // and a create
		return action.GetResource().Resource + "/" + action.GetObject().(metav1.Object).GetName()
	case k8stesting.GetAction:
		return action.GetResource().Resource + "/" + action.GetName()
	}
	return action.GetResource().Resource
}

func (f *fixture) mustApply(s settings, now time.Time) []string {
	f.t.Helper()
	writes, err := f.apply(s, now)
	if err != nil {
		f.t.Fatal(err)
	}
	return writes
}

func (f *fixture) secret(name string) *corev1.Secret {
	f.t.Helper()
	secret, err := f.kube.CoreV1().Secrets("trivet-system").Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return secret
}

func (f *fixture) trust(key string) []byte {
	f.t.Helper()
	configMap, err := f.kube.CoreV1().ConfigMaps("trivet-system").Get(f.t.Context(), "trivet-ca", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return []byte(configMap.Data[key])
}

// verify checks a server's certificate for a purpose against a bundle.
func verify(t *testing.T, bundle, certificate []byte, name string, usage x509.ExtKeyUsage, now time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	block, _ := pem.Decode(certificate)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func TestApply_CertificatesVerifyAndTheSecondRunWritesNothing(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, nil)
	want := []string{
		"create secrets/trivet-ca", "create configmaps/trivet-ca", "create secrets/trivet-bootstrapsvc-tls",
		"create secrets/trivet-gateway-tls", "create secrets/trivet-leasesvc-tls", "create secrets/trivet-slicesvc-tls",
	}
	if got := f.mustApply(s, start); !slices.Equal(got, want) {
		t.Errorf("first run: %v, want %v", got, want)
	}
	for _, server := range certs.Servers() {
		certificate := f.secret("trivet-" + server + "-tls").Data["tls.crt"]
		for _, name := range []string{server, server + ".trivet-system.svc", server + ".trivet-system.svc.cluster.local", "localhost", "127.0.0.1"} {
			if err := verify(t, f.trust("ca.crt"), certificate, name, x509.ExtKeyUsageServerAuth, start); err != nil {
				t.Errorf("%s as server %s: %v", server, name, err)
			}
		}
		if err := verify(t, f.trust("client-ca.crt"), certificate, "", x509.ExtKeyUsageClientAuth, start); err != nil {
			t.Errorf("%s as client: %v", server, err)
		}
	}
	if got := f.mustApply(s, start.Add(day)); len(got) != 0 {
		t.Errorf("the second run wrote %v", got)
	}
	if strings.Contains(f.out.String(), "PRIVATE KEY") {
		t.Error("the output has a private key")
	}
}

// Trivet's authority also issues the certificates of an etcd of its own and of Prometheus. None of
// them has a group that servers believe.
func TestApply_IssuesFurtherCertificates(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, func(o *options) { o.issue = []string{"etcd", "metrics"} })
	f.mustApply(s, start)
	member := f.secret("trivet-etcd-server-tls").Data["tls.crt"]
	for _, name := range []string{"etcd.trivet-system.svc", "etcd-2.etcd.trivet-system.svc", "etcd-0.etcd.trivet-system.svc.cluster.local", "127.0.0.1"} {
		if err := verify(t, f.trust("ca.crt"), member, name, x509.ExtKeyUsageServerAuth, start); err != nil {
			t.Errorf("member of etcd as %s: %v", name, err)
		}
	}
	for secret, user := range map[string]string{
		"trivet-etcd-server-tls": "trivet:etcd", "trivet-metrics-tls": "trivet:metrics", "trivet-leasesvc-etcd": "trivet:leasesvc",
		"trivet-bootstrapsvc-etcd": "trivet:bootstrapsvc", "trivet-gateway-etcd": "trivet:gateway", "trivet-slicesvc-etcd": "trivet:slicesvc",
	} {
		data := f.secret(secret).Data
		chain, err := certs.ParseCertificates(data["tls.crt"])
		if err != nil {
			t.Fatal(err)
		}
		if subject := chain[0].Subject; subject.CommonName != user || len(subject.Organization) > 0 {
			t.Errorf("%s is of %v, want user %s without a group", secret, subject, user)
		}
		if err := verify(t, data["ca.crt"], data["tls.crt"], "", x509.ExtKeyUsageClientAuth, start); err != nil {
			t.Errorf("%s as client: %v", secret, err)
		}
	}
	if got := f.mustApply(s, start.Add(day)); len(got) != 0 {
		t.Errorf("the second run wrote %v", got)
	}
}

// The authority of the cluster's clients may not vouch for servers, and the other way round.
func TestApply_ClusterAuthorityIsTrustedForClientsOnly(t *testing.T) {
	f := newFixture(t)
	f.mustApply(settingsOf(t, nil), start)
	kubelet, err := f.cluster.Issue(certs.NodeLeaf("node-a"), day, start)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(t, f.trust("client-ca.crt"), kubelet.CertPEM, "", x509.ExtKeyUsageClientAuth, start); err != nil {
		t.Errorf("a kubelet's certificate: %v", err)
	}
	forged, err := f.cluster.Issue(certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"), day, start)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(t, f.trust("ca.crt"), forged.CertPEM, "leasesvc", x509.ExtKeyUsageServerAuth, start); err == nil {
		t.Error("the cluster's authority vouches for a server")
	}
}

func TestApply_RotationTakesItsStepsAndEnds(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, nil)
	f.mustApply(s, start)
	rotate := settingsOf(t, func(o *options) { o.rotate = true })
	bundles := []string{
		"update configmaps/trivet-ca", "update secrets/trivet-bootstrapsvc-tls", "update secrets/trivet-gateway-tls",
		"update secrets/trivet-leasesvc-tls", "update secrets/trivet-slicesvc-tls",
	}
	store := "update secrets/trivet-ca"
	for _, step := range []struct {
		name     string
		after    time.Duration
		settings settings
		want     []string
	}{
		{"the next authority is trusted, then that is noted", 0, rotate, slices.Concat([]string{store}, bundles, []string{store})},
		{"nothing within the overlap", 59 * time.Minute, rotate, nil},
		{"the next authority signs, then that is noted", time.Hour, s, slices.Concat([]string{store}, bundles[1:], []string{store})},
		{"nothing within the second overlap", 119 * time.Minute, s, nil},
		{"the former authority goes", 2 * time.Hour, s, slices.Concat([]string{store}, bundles)},
		{"nothing", 3 * time.Hour, s, nil},
	} {
		if got := f.mustApply(step.settings, start.Add(day+step.after)); !slices.Equal(got, step.want) {
			t.Errorf("%s: wrote %v, want %v", step.name, got, step.want)
		}
	}
}

func TestApply_ObjectOfAnotherProgramIsKeptAndTheOthersAreWritten(t *testing.T) {
	for name, foreign := range map[string]runtime.Object{
		"Secret trivet-system/trivet-gateway-tls": &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "trivet-gateway-tls", Namespace: "trivet-system"}, Data: map[string][]byte{"tls.crt": []byte("x")}},
		"ConfigMap trivet-system/trivet-ca":       &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "trivet-ca", Namespace: "trivet-system"}, Data: map[string]string{"ca.crt": "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if err := f.kube.Tracker().Add(foreign); err != nil {
				t.Fatal(err)
			}
			writes, err := f.apply(settingsOf(t, nil), start)
			if err == nil || !strings.Contains(err.Error(), name+" exists and was not made by trivet certs") || exit.CodeOf(err) != exit.Findings {
				t.Errorf("apply: %v (exit %d)", err, exit.CodeOf(err))
			}
			if len(writes) != 5 || slices.ContainsFunc(writes, func(w string) bool { return strings.HasPrefix(w, "update") }) {
				t.Errorf("wrote %v, want the other five objects", writes)
			}
		})
	}
}

// While one object cannot be written, no authority takes over: its bundle may lack it.
func TestApply_NoAuthorityTakesOverWhileABundleIsNotWritten(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, nil)
	f.mustApply(s, start)
	signing := f.secret("trivet-ca").Data["tls.crt"]
	refused := true
	f.kube.PrependReactor("update", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		return refused, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "trivet-ca", nil)
	})
	rotate := settingsOf(t, func(o *options) { o.rotate = true })
	for hours := range 5 {
		if _, err := f.apply(rotate, start.Add(day+time.Duration(hours)*time.Hour)); err == nil {
			t.Fatal("a refused write is no error")
		}
	}
	if !bytes.Equal(f.secret("trivet-ca").Data["tls.crt"], signing) {
		t.Error("an authority signs that the ConfigMap lacks")
	}
	refused = false
	f.mustApply(s, start.Add(2*day))
	f.mustApply(s, start.Add(2*day+time.Hour))
	if bytes.Equal(f.secret("trivet-ca").Data["tls.crt"], signing) {
		t.Error("the next authority does not sign after the overlap")
	}
}

func TestApply_RunThatIsOvertakenStartsAgain(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, nil)
	f.mustApply(s, start)
	overtaken := false
	f.kube.PrependReactor("update", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		if overtaken {
			return false, nil, nil
		}
		overtaken = true // another run stores its authorities first
		secrets := corev1.SchemeGroupVersion.WithResource("secrets")
		stored, err := f.kube.Tracker().Get(secrets, "trivet-system", "trivet-ca") // the clientset is locked here
		if err != nil {
			return true, nil, err
		}
		secret := stored.(*corev1.Secret).DeepCopy()
		secret.ResourceVersion = "another"
		return false, nil, f.kube.Tracker().Update(secrets, secret, "trivet-system")
	})
	f.mustApply(settingsOf(t, func(o *options) { o.rotate = true }), start.Add(day))
	if data := f.secret("trivet-ca").Data; len(data["next.crt"]) == 0 {
		t.Error("the run that was overtaken forgot the rotation")
	}
}

func TestApply_GivenAuthoritiesSignAndTheirKeysStayOut(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) (cert, key string) {
		authority, err := certs.NewAuthority(name, certs.AuthorityLifetime, start)
		if err != nil {
			t.Fatal(err)
		}
		keyPEM, err := authority.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		if err := os.WriteFile(cert, authority.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(key, keyPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	ca, caKey := write("mine")
	etcd, etcdKey := write("etcd")
	f := newFixture(t)
	s := settingsOf(t, func(o *options) { o.caCert, o.caKey, o.etcdCert, o.etcdKey = ca, caKey, etcd, etcdKey })
	f.mustApply(s, start)
	if got := f.mustApply(s, start.Add(day)); len(got) != 0 {
		t.Errorf("the second run wrote %v", got)
	}
	if _, stored := f.secret("trivet-ca").Data["tls.key"]; stored {
		t.Error("the key of the given authority is in the cluster")
	}
	client := f.secret("trivet-gateway-etcd")
	if err := verify(t, client.Data["ca.crt"], client.Data["tls.crt"], "", x509.ExtKeyUsageClientAuth, start); err != nil {
		t.Errorf("client of etcd: %v", err)
	}
	if got := f.mustApply(settingsOf(t, nil), start.Add(day)); len(got) != 0 {
		t.Errorf("without the given authority, and nothing to sign, a run wrote %v", got)
	}
	if _, err := f.apply(settingsOf(t, nil), start.Add(300*day)); err == nil || !strings.Contains(err.Error(), "--ca-key") {
		t.Errorf("without the given authority, and something to sign: %v", err)
	}
}

func TestApply_LostAuthorityIsReplacedWithAnOverlap(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, nil)
	f.mustApply(s, start)
	before := f.secret("trivet-leasesvc-tls").Data["tls.crt"]
	if err := f.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), "trivet-system", "trivet-ca"); err != nil {
		t.Fatal(err)
	}
	f.mustApply(s, start.Add(day))
	if after := f.secret("trivet-leasesvc-tls").Data["tls.crt"]; !bytes.Equal(before, after) {
		t.Error("a certificate was replaced before the overlap")
	}
	f.mustApply(s, start.Add(day+time.Hour))
	after := f.secret("trivet-leasesvc-tls").Data["tls.crt"]
	for _, certificate := range [][]byte{before, after} {
		if err := verify(t, f.trust("ca.crt"), certificate, "leasesvc", x509.ExtKeyUsageServerAuth, start.Add(day)); err != nil {
			t.Error(err)
		}
	}
	if bytes.Equal(before, after) {
		t.Error("the new authority does not sign")
	}
}

// The Roles of the components allow each request of their commands, and grant nothing else. A run
// goes on without the Secrets with keys for etcd, which no Role allows to read.
func TestRoles_AllowExactlyWhatTheCommandsDo(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, nil)
	f.kube.PrependReactor("get", "secrets", func(action k8stesting.Action) (bool, runtime.Object, error) {
		name := action.(k8stesting.GetAction).GetName()
		return strings.HasSuffix(name, "-etcd"), nil, apierrors.NewForbidden(corev1.Resource("secrets"), name, nil)
	})
	var used []k8stesting.Action
	for hours := range 4 {
		f.mustApply(settingsOf(t, func(o *options) { o.rotate = hours == 1 }), start.Add(time.Duration(hours)*time.Hour))
		used = append(used, f.kube.Actions()...)
	}
	checkRole(t, "certs", used)

	f.kube.ClearActions()
	if err := f.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("configmaps"), "trivet-system", "trivet-ca"); err != nil {
		t.Fatal(err)
	}
	trust := func() {
		t.Helper()
		if err := repeatedly(t.Context(), f.objects(), s, time.Now, func(change) {}, (*run).trust); err != nil {
			t.Fatal(err)
		}
	}
	trust()
	changed := f.secret("trivet-slicesvc-tls")
	changed.Data["ca.crt"] = f.cluster.CertPEM()
	if err := f.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), changed, "trivet-system"); err != nil {
		t.Fatal(err)
	}
	trust()
	checkRole(t, "cert-manager", f.kube.Actions())
}

func checkRole(t *testing.T, component string, used []k8stesting.Action) {
	t.Helper()
	granted := map[string]bool{}
	for _, rule := range roleOf(t, component).Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range append(rule.ResourceNames, "")[:max(1, len(rule.ResourceNames))] {
					granted[verb+" "+resource+"/"+name] = false
				}
			}
		}
	}
	for _, action := range used {
		if action.GetNamespace() == "kube-system" {
			continue // the Role extension-apiserver-authentication-reader of Kubernetes
		}
		if strings.HasSuffix(nameOf(action), "-etcd") {
			continue // it is refused
		}
		request := action.GetVerb() + " " + nameOf(action)
		if action.GetVerb() == "create" {
			request = "create " + action.GetResource().Resource + "/"
		}
		if _, ok := granted[request]; !ok {
			t.Errorf("%s: the role does not allow %s", component, request)
		}
		granted[request] = true
	}
	for grant, needed := range granted {
		if !needed {
			t.Errorf("%s: the role allows %s, which is never used", component, grant)
		}
	}
}

func roleOf(t *testing.T, component string) rbacv1.Role {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../../deploy/components", component, "roles.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var role rbacv1.Role
		if err := decoder.Decode(&role); err != nil {
			t.Fatalf("no Role in %s: %v", component, err)
		}
		if role.Kind == "Role" {
			return role
		}
	}
}

func TestRender_OutputIsTheInputOfTheNextRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "certs.yaml")
	printed := func(file string) string {
		t.Helper()
		var out strings.Builder
		opts := defaults()
		s, err := opts.settings(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := render(t.Context(), printer.Streams{Out: &out, Err: io.Discard}, file, "", s); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	first := printed("")
	if err := os.WriteFile(path, []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	if second := printed(path); second != first {
		t.Error("the second run changed something")
	}
	if strings.Count(first, "kind: Secret") != 5 || strings.Count(first, "kind: ConfigMap") != 1 {
		t.Errorf("printed:\n%s", first)
	}
}

// The files of a machine are those that deploy/static-pods name. Only changed ones are written, no
// file has the key of the authority, and only the group reads keys.
func TestRender_WritesTheFilesOfStaticPods(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "trivet")
	if err := errors.Join(os.Mkdir(directory, 0o700), os.Chmod(directory, os.ModeSetgid|0o750)); err != nil {
		t.Fatal(err)
	}
	etcd, err := certs.NewAuthority("etcd", time.Hour*24*365, start)
	if err != nil {
		t.Fatal(err)
	}
	s := settingsOf(t, nil)
	s.etcd, s.includeClusterClientCA = etcd, false
	objects := newMemory("trivet-system")
	written := func(at time.Time) (paths []string) {
		t.Helper()
		if err := applyRepeatedly(t.Context(), objects, s, func() time.Time { return at }, func(change) {}); err != nil {
			t.Fatal(err)
		}
		if err := writeFiles(directory, objects.files(), func(path string) { paths = append(paths, path) }); err != nil {
			t.Fatal(err)
		}
		return paths
	}
	var want []string
	for _, name := range []string{"bootstrapsvc/tls.crt", "bootstrapsvc/tls.key",
		"etcd/bootstrapsvc/ca.crt", "etcd/bootstrapsvc/tls.crt", "etcd/bootstrapsvc/tls.key", "etcd/gateway/ca.crt", "etcd/gateway/tls.crt",
		"etcd/gateway/tls.key", "etcd/leasesvc/ca.crt", "etcd/leasesvc/tls.crt", "etcd/leasesvc/tls.key", "etcd/slicesvc/ca.crt",
		"etcd/slicesvc/tls.crt", "etcd/slicesvc/tls.key", "gateway/tls.crt", "gateway/tls.key", "leasesvc/tls.crt", "leasesvc/tls.key", "slicesvc/tls.crt", "slicesvc/tls.key",
		"trust/ca.crt", "trust/client-ca.crt"} {
		want = append(want, filepath.Join(directory, name))
	}
	if got := written(start); !slices.Equal(got, want) {
		t.Errorf("wrote %v, want %v", got, want)
	}
	authority := objects.secrets[authoritySecret].Data["tls.key"]
	for _, path := range want {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil || len(content) == 0 || len(authority) == 0 || bytes.Contains(content, authority) {
			t.Errorf("%s: %v, %d bytes, or the key of the authority", path, err, len(content))
		}
		if isKey := strings.HasSuffix(path, ".key"); isKey && info.Mode().Perm() != 0o640 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
	folder, err := os.Stat(filepath.Join(directory, "leasesvc"))
	if err != nil || folder.Mode() != os.ModeDir|os.ModeSetgid|0o750 {
		t.Errorf("folder: %v, %v, want that its group reads it and passes on", err, folder.Mode())
	}
	if got := written(start.Add(time.Minute)); len(got) != 0 {
		t.Errorf("the second run wrote %v", got)
	}
	if got := written(start.Add(300 * 24 * time.Hour)); !slices.Contains(got, filepath.Join(directory, "leasesvc/tls.crt")) {
		t.Errorf("a worn certificate is not written again: %v", got)
	}
	if left, err := filepath.Glob(filepath.Join(directory, "*", ".*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files stay: %v, %v", left, err)
	}
}

func TestStatus_SaysWhatIsAndWhatTheNextRunDoes(t *testing.T) {
	f, s := newFixture(t), settingsOf(t, nil)
	f.mustApply(s, start)
	show := func(now time.Time) (string, error) {
		t.Helper()
		var out strings.Builder
		f.kube.ClearActions()
		var flags client.OutputFlags
		flags.Register(&cobra.Command{}, printer.Streams{Out: &out, Env: func(string) string { return "" }}, "table")
		err := showStatus(t.Context(), &flags, f.objects(), s, now)
		if writes := f.writes(); len(writes) != 0 {
			t.Errorf("status wrote %v", writes)
		}
		return out.String(), err
	}
	for _, server := range certs.Servers() {
		etcd := f.secret("trivet-leasesvc-tls").DeepCopy()
		etcd.Name, etcd.Labels = etcdSecret(server), nil
		if err := f.kube.Tracker().Add(etcd); err != nil {
			t.Fatal(err)
		}
	}
	out, err := show(start.Add(day))
	if err != nil || !strings.Contains(out, "next run: nothing to do") || !strings.Contains(out, "trivet-gateway-etcd") {
		t.Errorf("after a run: %v\n%s", err, out)
	}
	out, err = show(start.Add(300 * day))
	if exit.CodeOf(err) != exit.Findings || !strings.Contains(out, "to be renewed") ||
		!strings.Contains(out, "next run: secret/trivet-gateway-tls updated: it expires at 2027-01-01T00:00:00Z") {
		t.Errorf("near the end: %v\n%s", err, out)
	}
	out, err = show(start.Add(400 * day))
	if exit.CodeOf(err) != exit.Findings || !strings.Contains(out, "expired") {
		t.Errorf("after the end: %v\n%s", err, out)
	}
}

// Certificates of etcd's authority need its key. Without it, the commands say which flags renew an
// expired one, and these flags do.
func TestApply_ExpiredCertificateForEtcdNamesItsRemedy(t *testing.T) {
	f := newFixture(t)
	authority, err := certs.NewAuthority("etcd", certs.AuthorityLifetime, start)
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	with := settingsOf(t, func(o *options) {
		o.etcdCert, o.etcdKey = filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key")
		for path, text := range map[string][]byte{o.etcdCert: authority.CertPEM(), o.etcdKey: key} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	without := settingsOf(t, nil)
	f.mustApply(with, start)
	if f.mustApply(without, start.Add(300*day)); !strings.Contains(f.out.String(), "secret/trivet-leasesvc-etcd to be renewed") ||
		!strings.Contains(f.out.String(), "give --etcd-ca-cert and --etcd-ca-key") {
		t.Errorf("near the end, apply says\n%s", &f.out)
	}
	expired := start.Add(400 * day)
	_, err = f.apply(without, expired)
	var report strings.Builder
	exit.Report(&report, err)
	if exit.CodeOf(err) != exit.Findings || !strings.Contains(report.String(), "trivet-leasesvc-etcd expired at") || !strings.Contains(report.String(), "try: give --etcd-ca-cert") {
		t.Errorf("after the end, apply says\n%s%s", &f.out, &report)
	}
	f.mustApply(with, expired)
	if f.mustApply(without, expired); strings.Contains(f.out.String(), "--etcd-ca-cert") {
		t.Errorf("after the remedy, apply says\n%s", &f.out)
	}
}

func TestOptions_EveryMistakeIsNamed(t *testing.T) {
	opts := defaults()
	opts.namespace, opts.overlap, opts.lifetime = "", time.Second, time.Minute
	opts.servers, opts.dnsNames = []string{"gateway", "x"}, []string{"leasesvc=a"}
	opts.issue = []string{"y"}
	opts.caCert, opts.etcdCert, opts.etcdKey, opts.clientCAFiles = "absent", "absent", "absent", []string{"absent"}
	_, err := opts.settings([]string{"extra"})
	for _, want := range []string{
		"no arguments", "--namespace", "--overlap", "--lifetime", `--servers "x"`, `--issue "y"`, "--dns-name", "--ca-cert and --ca-key", "--etcd-ca-cert", "--client-ca-file absent",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
	if exit.CodeOf(err) != exit.Usage {
		t.Errorf("exit code %d", exit.CodeOf(err))
	}
}

func TestConnect_WithoutAKubeconfigNamesIt(t *testing.T) {
	_, err := connect(&options{}, func(string) string { return "" })
	var report strings.Builder
	exit.Report(&report, err)
	if exit.CodeOf(err) != exit.Usage || !strings.Contains(report.String(), "give --kubeconfig or KUBECONFIG") || strings.Contains(report.String(), "MASTER") {
		t.Errorf("exit code %d: %s", exit.CodeOf(err), &report)
	}
}

func TestApply_NoAnswerIsNotDetermined(t *testing.T) {
	f := newFixture(t)
	f.kube.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, context.DeadlineExceeded
	})
	if _, err := f.apply(settingsOf(t, nil), start); exit.CodeOf(err) != exit.Undetermined {
		t.Errorf("%v has exit code %d", err, exit.CodeOf(err))
	}
}
