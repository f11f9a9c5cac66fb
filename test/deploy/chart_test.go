package deploy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// chartFolder is the chart, seen from this package.
const chartFolder = "../../deploy/chart"

// etcdEndpoint is the only value that has no default; the overlays have this one.
const etcdEndpoint = "etcd.endpoints[0]=https://etcd.trivet-system.svc:2379"

// testdata is the folder of the overlays that only tests have, seen from deploy/.
const testdata = "../test/deploy/testdata/"

// The tests of the chart run with another helm, and those of the trees with another kustomize, to
// find the oldest ones that work.
var (
	otherHelm      = flag.String("helm", "", "path of another helm; empty: the one that make helm builds")
	otherKustomize = flag.String("kustomize", "", "path of another kustomize; empty: the one of tools/kustomize")
)

// helm returns the path of helm, which a Make target builds, and skips the test without it.
func helm(t *testing.T) string {
	t.Helper()
	if *otherHelm != "" {
		return *otherHelm
	}
	path, err := filepath.Abs("../../.tools/bin/helm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("helm is not built, so the chart is not tested: run `make helm`, once (a minute and a half)")
	}
	return path
}

// toldOfChart says that `go test` knows the files of deploy/, for the whole run.
var toldOfChart sync.Once

// runHelm runs helm with the configuration of no user.
func runHelm(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	toldOfChart.Do(func() { tellCache(t, "../../deploy") })
	if *otherHelm != "" && args[0] == "template" { // an older one takes a Kubernetes of its own age
		args = append(slices.Clone(args), "--kube-version=1.37.1")
	}
	command := exec.CommandContext(t.Context(), helm(t), args...)
	home := t.TempDir()
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var complaints bytes.Buffer
	command.Stderr = &complaints
	text, err := command.Output()
	if err != nil {
		err = fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, complaints.String())
	}
	return string(text), err
}

// set are the arguments of helm for values in the form of --set.
func set(values ...string) []string {
	var args []string
	for _, value := range values {
		args = append(args, "--set", value)
	}
	return args
}

// template renders the chart with values, once for each list of arguments.
func template(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	helm(t)
	rendered.Lock()
	defer rendered.Unlock()
	key := "helm " + strings.Join(args, " ")
	if rendered.of[key] == nil {
		output, err := runHelm(t, append([]string{"template", "trivet", chartFolder, "--namespace", system}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		rendered.of[key] = []byte(output)
	}
	return objectsOf(t, rendered.of[key])
}

// objectsOf reads what helm prints. A template without objects leaves an empty document.
func objectsOf(t *testing.T, output []byte) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(output), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// combination is a choice that kustomize and the chart both have.
type combination struct {
	tree   string // of kustomize, seen from deploy/
	values []string
	show   string // the template of a static Pod, whose manifest is the whole output
}

func combinations() map[string]combination {
	inCluster := func(values ...string) []string {
		return append([]string{etcdEndpoint, "namespace.create=true"}, values...)
	}
	static := func(names ...string) []string {
		values := []string{"etcd.endpoints[0]=https://127.0.0.1:2379"}
		for _, name := range names {
			values = append(values, "servers."+name+".mode=StaticPod")
		}
		return values
	}
	all := []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"}
	found := map[string]combination{
		"default":     {tree: "overlays/standalone", values: inCluster()},
		"sidecar":     {tree: "overlays/sidecar", values: inCluster("servers.bootstrapsvc.mode=StaticPod")},
		"static":      {tree: "overlays/static-pods", values: inCluster(append(static(all...)[1:], "networkPolicy.enabled=false")...)},
		"node-health": {tree: testdata + "chart/node-health", values: inCluster("servers.leasesvc.nodeHealth=true")},
		"mirroring":   {tree: testdata + "chart/mirroring", values: inCluster("servers.slicesvc.endpointSliceMirroring=true")},
		"both-loops":  {tree: testdata + "chart/both-loops", values: inCluster("servers.leasesvc.nodeHealth=true", "servers.leasesvc.taintEviction=true")},
		"cert-manager": {tree: testdata + "chart/cert-manager", values: inCluster("certificates.source=CertManager",
			"certificates.issuerRef.kind=Issuer", "certificates.issuerRef.name=trivet")},
		"cert-manager-authority": {tree: testdata + "chart/cert-manager-authority", values: inCluster("certificates.source=CertManager",
			"certificates.authorityInCluster=true")},
		"any-node":       {tree: testdata + "chart/any-node", values: inCluster("pods.controlPlaneOnly=false")},
		"own-secrets":    {tree: testdata + "chart/own-secrets", values: inCluster("certificates.source=Secrets")},
		"agent":          {tree: testdata + "chart/agent", values: inCluster("agent.mode=DaemonSet")},
		"agent-static":   {tree: "static-pods/agent", values: append(static(), "agent.mode=StaticPod"), show: "agent"},
		"agent-endpoint": {tree: "static-pods/agent-endpoint", values: append(static(), "agent.mode=StaticPod", "agent.kubeletEndpoint=127.0.0.1:7604"), show: "agent"},
	}
	for _, name := range all {
		found["static-"+name] = combination{tree: "static-pods/" + name, values: static(name), show: name}
	}
	return found
}

// render renders the chart's side of the combination.
func (c combination) render(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	args := set(c.values...)
	if c.show != "" {
		args = append(args, "--set", "staticPods.print=true", "--show-only", "templates/static-pods/"+c.show+".yaml")
	}
	return template(t, args...)
}

// Kustomize and the chart render the same objects. plain says what may differ.
func TestChart_EqualsKustomize(t *testing.T) {
	for name, c := range combinations() {
		t.Run(name, func(t *testing.T) {
			chart, kustomize := plainTexts(t, c.render(t)), plainTexts(t, render(t, c.tree))
			if len(kustomize) == 0 {
				t.Fatal("kustomize renders nothing")
			}
			for object, text := range kustomize {
				switch got, ok := chart[object]; {
				case !ok:
					t.Errorf("the chart lacks %s", object)
				case got != text:
					t.Errorf("%s differs.\nchart:\n%s\nkustomize:\n%s", object, got, text)
				}
			}
			for object := range chart {
				if _, ok := kustomize[object]; !ok {
					t.Errorf("kustomize lacks %s", object)
				}
			}
		})
	}
}

// A difference is found in every field that plain keeps.
func TestChart_ADifferenceIsFound(t *testing.T) {
	other := plainTexts(t, template(t, set(etcdEndpoint, "namespace.create=true", "servers.leasesvc.replicas=3", "flowControl.shares=31")...))
	differing := []string{}
	for object, text := range plainTexts(t, render(t, "overlays/standalone")) {
		if other[object] != text {
			differing = append(differing, object)
		}
	}
	slices.Sort(differing)
	if want := []string{"Deployment trivet-system/leasesvc", "PriorityLevelConfiguration /trivet"}; !slices.Equal(differing, want) {
		t.Errorf("%v differ, want %v", differing, want)
	}
}

// generated is the end of a name that depends on the content of the object. Kustomize has it for
// the settings, so that a change rolls the Pods, where the chart has an annotation. The chart has
// it for the Job, so that an upgrade does not change a Job, which Kubernetes refuses.
var generated = regexp.MustCompile(`^(trivet-settings|certs)-[0-9a-z]{8,10}$`)

// plainTexts returns each object without what may differ between the two ways, as JSON by its kind,
// namespace and name.
func plainTexts(t *testing.T, objects []*unstructured.Unstructured) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, object := range objects {
		object = object.DeepCopy()
		object.SetName(generated.ReplaceAllString(object.GetName(), "$1"))
		plain(object.Object)
		if object.GetKind() == "Job" { // the chart's stays, as a part of the release
			unstructured.RemoveNestedField(object.Object, "spec", "ttlSecondsAfterFinished")
		}
		text, err := json.MarshalIndent(object.Object, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
		if _, twice := texts[key]; twice {
			t.Errorf("%s is rendered twice", key)
		}
		texts[key] = string(text)
	}
	return texts
}

// ordered are the lists whose order has no meaning, with the field that identifies an item.
var ordered = map[string]string{"env": "name", "volumes": "name", "volumeMounts": "mountPath", "imagePullSecrets": "name"}

// plain removes Helm's labels and annotations, names of generated objects, and empty maps and
// lists, and sorts what has no order.
func plain(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, item := range value {
			item = plain(item)
			if key == "configMapRef" {
				reference := item.(map[string]any)
				reference["name"] = generated.ReplaceAllString(reference["name"].(string), "$1")
			}
			if by := ordered[key]; by != "" {
				slices.SortFunc(item.([]any), func(a, b any) int {
					return cmp.Compare(fmt.Sprint(a.(map[string]any)[by]), fmt.Sprint(b.(map[string]any)[by]))
				})
			}
			value[key] = item
			if empty(item) || helmsOwn(key, item) {
				delete(value, key)
			}
		}
		return value
	case []any:
		for i := range value {
			value[i] = plain(value[i])
		}
		return value
	default:
		return value
	}
}

// helmsOwn says whether a label or annotation concerns Helm alone.
func helmsOwn(key string, value any) bool {
	return key == "helm.sh/chart" || key == "helm.sh/resource-policy" || key == "checksum/settings" ||
		key == "app.kubernetes.io/managed-by" && value == "Helm"
}

// empty says whether a map lost its last label. The empty object of a selfSigned issuer has a
// meaning, and is empty on both sides.
func empty(value any) bool {
	labels, ok := value.(map[string]any)
	return ok && len(labels) == 0
}

// A real kube-apiserver accepts every object of every choice. The namespace enforces restricted, or
// privileged where Pods have the network of their machine: agents and static Pods.
func TestChart_ARealAPIServerAcceptsEveryObject(t *testing.T) {
	helm(t)
	server := newApplier(t, testkit.Cluster(t).RESTConfig())
	rendered := map[string][]*unstructured.Unstructured{}
	needsMachine := map[string]bool{"sidecar": true, "static": true, "agent": true}
	for name, c := range combinations() {
		needsMachine[name] = needsMachine[name] || c.show != ""
		rendered[name] = c.render(t)
	}
	for name, values := range variants() {
		rendered[name] = template(t, set(append(values, "namespace.create=true")...)...)
	}
	accepted := map[string]bool{} // objects that were asked about; most are in many choices
	for name, objects := range rendered {
		t.Run(name, func(t *testing.T) {
			namespaces := objects
			if combinations()[name].show != "" {
				namespaces = rendered["agent"]
			}
			server.applyNamespaces(t, namespaces)
			t.Cleanup(func() { server.restore(t) })
			for _, object := range objects {
				if object.GetKind() == "Namespace" {
					if level := object.GetLabels()["pod-security.kubernetes.io/enforce"]; (level == "privileged") != needsMachine[name] {
						t.Errorf("the namespace enforces %q", level)
					}
				}
				if slices.Contains([]string{certManagerGroup, "monitoring.coreos.com"}, object.GroupVersionKind().Group) {
					continue // no part of Kubernetes
				}
				asked := fmt.Sprint(needsMachine[name], jsonOf(t, object))
				if accepted[asked] {
					continue
				}
				accepted[asked] = true
				if err := server.apply(t.Context(), object, true); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
			if needsMachine[name] {
				return
			}
			for pod, spec := range pods(t, objects) {
				if err := admit(t, "admitted", spec); err != nil {
					t.Errorf("Pod of %s: %v", pod, err)
				}
			}
		})
	}
}

// A misspelt value is refused before anything is written, at every depth. The refusal names each,
// so one run tries them all.
func TestChart_MisspeltValuesAreRefused(t *testing.T) {
	wrong := map[string]string{
		"etcd.endpoint=https://a:2379":              "'/etcd': additional properties 'endpoint'",
		"etcd.endpoints[1]=10.0.0.1":                "'/etcd/endpoints/1': '10.0.0.1' does not match",
		"etcd.embedded.members=2":                   "'/etcd/embedded/members': value must be one of 1, 3, 5",
		"etcd.embedded.storage.classname=fast":      "'/etcd/embedded/storage': additional properties 'classname'",
		"servers.heartbeats.enabled=true":           "'/servers': additional properties 'heartbeats'",
		"servers.bootstrapsvc.replica=3":            "'/servers/bootstrapsvc': additional properties 'replica'",
		"servers.bootstrapsvc.mode=Sidecar":         "'/servers/bootstrapsvc/mode': value must be one of 'Deployment'",
		"servers.gateway.replicas=two":              "'/servers/gateway/replicas': got string",
		"servers.gateway.service.types=NodePort":    "'/servers/gateway/service': additional properties 'types'",
		"servers.leasesvc.managedBy=x":              "'/servers/leasesvc': additional properties 'managedBy'",
		"servers.leasesvc.flags.Write_Policy=x":     "'/servers/leasesvc/flags': additional properties 'Write_Policy'",
		"certificates.source=job":                   "'/certificates/source': value must be one of 'Job'",
		"networkPolicy.node[0]=10.0.0.0/8":          "'/networkPolicy': additional properties 'node'",
		"flowControl.share=1":                       "'/flowControl': additional properties 'share'",
		"monitoring.scrape=true":                    "'/monitoring/scrape': value must be one of 'None'",
		"agent.mode=Daemonset":                      "'/agent/mode': value must be one of 'None'",
		"staticPods.etcdEndpoint[0]=https://a:2379": "'/staticPods': additional properties 'etcdEndpoint'",
		"size=huge":   "'/size': value must be one of 'small'",
		"sizes=small": "'': additional properties 'sizes'",
	}
	values := append([]string{etcdEndpoint}, slices.Sorted(maps.Keys(wrong))...)
	_, err := runHelm(t, append([]string{"template", "trivet", chartFolder, "--namespace", system}, set(values...)...)...)
	if err == nil {
		t.Fatal("the chart renders with misspelt values")
	}
	for value, want := range wrong {
		if !strings.Contains(err.Error(), "at "+want) {
			t.Errorf("%s is not refused by %q:\n%v", value, want, err)
		}
	}
}

// After an installation the notes name the loops of upstream that must be off, and no others: a
// loop in dry run writes nothing.
func TestChart_NotesNameWhatUpstreamMustTurnOff(t *testing.T) {
	const node, taint, mirroring, own, compared = "-node-lifecycle-controller", "-taint-eviction-controller", "-endpointslice-mirroring-controller", "-endpointslice-controller", "writes nothing for"
	all := []string{node, taint, mirroring, own, compared}
	for name, c := range map[string]struct{ values, want []string }{
		"default":           {want: []string{own}},
		"slices off":        {values: []string{`servers.slicesvc.loops=*\,-endpointslices`}},
		"all loops":         {values: []string{"servers.leasesvc.nodeHealth=true", "servers.leasesvc.taintEviction=true", "servers.slicesvc.endpointSliceMirroring=true"}, want: []string{node, taint, mirroring, own}},
		"all in dry run":    {values: []string{"servers.leasesvc.dryRun={node-health,taint-eviction}", "servers.slicesvc.dryRun={endpointslices,endpointslice-mirroring}"}, want: []string{compared}},
		"selected, dry run": {values: []string{"servers.leasesvc.nodeHealth=true", "servers.leasesvc.dryRun={node-health}"}, want: []string{own, compared}},
		"dry run as a flag": {values: []string{"servers.leasesvc.nodeHealth=true", "servers.leasesvc.flags.dry-run=node-health"}, want: []string{own}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"install", "trivet", chartFolder, "--namespace", system, "--dry-run=client"}, set(append(c.values, etcdEndpoint)...)...)
			output, err := runHelm(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			_, notes, found := strings.Cut(output, "NOTES:")
			if !found {
				t.Fatal("the output has no notes")
			}
			var got []string
			for _, text := range all {
				if strings.Contains(notes, text) {
					got = append(got, text)
				}
			}
			if !slices.Equal(c.want, got) {
				t.Errorf("the notes name %v, want %v:\n%s", got, c.want, notes)
			}
		})
	}
}

// After an installation the notes name why Pods stay Pending without a control-plane node, whose
// certificates etcd believes, and that users of an issuer become gateways.
func TestChart_NotesNameWhatIsTrusted(t *testing.T) {
	const pending, users, issuer = "pods.controlPlaneOnly=false", "deploy/etcd-roles.sh", "ClusterIssuer company"
	for name, c := range map[string]struct{ values, want []string }{
		"default":  {values: []string{etcdEndpoint}, want: []string{pending, users}},
		"any node": {values: []string{etcdEndpoint, "pods.controlPlaneOnly=false"}, want: []string{users}},
		"embedded": {values: []string{"etcd.embedded.enabled=true", "servers.slicesvc.enabled=false"}, want: []string{pending}},
		"shared issuer": {values: []string{etcdEndpoint, "certificates.source=CertManager", "certificates.issuerRef.kind=ClusterIssuer",
			"certificates.issuerRef.name=company", "certificates.acceptSharedIssuer=true"}, want: []string{pending, users, issuer}},
	} {
		output, err := runHelm(t, append([]string{"install", "trivet", chartFolder, "--namespace", system, "--dry-run=client"}, set(c.values...)...)...)
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(output, "NOTES:")
		for _, text := range []string{pending, users, issuer} {
			if strings.Contains(notes, text) != slices.Contains(c.want, text) {
				t.Errorf("%s: the notes name %q: %v\n%s", name, text, !slices.Contains(c.want, text), notes)
			}
		}
	}
}

// Values that cannot work together are refused, each with what to do.
func TestChart_ContradictingValuesAreRefused(t *testing.T) {
	for want, values := range map[string][]string{
		"set etcd.endpoints":              {"size=small"},
		"etcd.embedded.enabled, not both": {etcdEndpoint, "etcd.embedded.enabled=true"},
		"endpointslice controller":        {"etcd.embedded.enabled=true"},
		"DNS of its machine":              {"etcd.embedded.enabled=true", "servers.slicesvc.enabled=false", "servers.leasesvc.mode=StaticPod"},
		"agent.mode=StaticPod":            {etcdEndpoint, "agent.kubeletEndpoint=127.0.0.1:7604"},
		"goMemoryLimit":                   {etcdEndpoint, "servers.leasesvc.resources.limits.memory=1Gi"},
		"gateways is not enabled":         {etcdEndpoint, "certificates.dnsNames.gateways[0]=a.b"},
		"which dryRun compares":           {etcdEndpoint, "servers.slicesvc.loops=-endpointslices", "servers.slicesvc.dryRun={endpointslices}"},
		"bootstrapsvc.mode to":            {etcdEndpoint, "servers.bootstrapsvc.dryRun={kubernetes-endpoints}"},
		"dryRun or flags.dry-run":         {etcdEndpoint, "servers.leasesvc.dryRun={node-health}", "servers.leasesvc.flags.dry-run=node-health"},
		"give issuerRef":                  {etcdEndpoint, "certificates.source=CertManager"},
		"Secret trivet-ca; not both":      {etcdEndpoint, "certificates.source=CertManager", "certificates.authorityInCluster=true", "certificates.issuerRef.name=a"},
		"acceptSharedIssuer=true":         {etcdEndpoint, "certificates.source=CertManager", "certificates.issuerRef.kind=ClusterIssuer", "certificates.issuerRef.name=a"},
		"could not find template":         {etcdEndpoint, "staticPods.print=true"}, // below: leasesvc is a Deployment
	} {
		args := append([]string{"template", "trivet", chartFolder, "--namespace", system}, set(values...)...)
		if slices.Contains(values, "staticPods.print=true") {
			args = append(args, "--show-only", "templates/static-pods/leasesvc.yaml")
		}
		if _, err := runHelm(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want a refusal with %q", values, err, want)
		}
	}
}
