package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/internal/process"
)

// withAllPods are values that make a Pod of each kind.
func withAllPods() []string {
	return []string{"etcd.embedded.enabled=true", "servers.slicesvc.managedBy=trivet.dev", "agent.mode=DaemonSet", "namespace.create=true"}
}

// Each value of pods is in each Pod, those about nodes only where a Pod has a key. An agent runs on
// every node, and has a class and a selector of its own.
func TestChart_EachPodHasTheValuesOfPods(t *testing.T) {
	objects := template(t, set(append(withAllPods(), "image.pullSecrets[0]=registry", "image.pullPolicy=Always", "pods.annotations.a=b",
		"pods.priorityClassName=ours", "pods.anyUser=true", "pods.nodeSelector.disk=ssd", "pods.tolerations[0].key=ours", "pods.tolerations[0].operator=Exists",
		"pods.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=rack",
		"pods.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
		"agent.priorityClassName=agents", "agent.nodeSelector.pool=agents")...)...)
	found := podTemplates(t, objects)
	if len(found) != 8 {
		t.Fatalf("%d Pods, want four servers, the Job, the CronJob, etcd and the agent", len(found))
	}
	for name, pod := range found {
		spec, agent := pod.Spec, name == "daemonset/trivet-agent"
		ours := corev1.Toleration{Key: "ours", Operator: corev1.TolerationOpExists}
		of := func(ofAgent, ofOthers string) string { return map[bool]string{true: ofAgent, false: ofOthers}[agent] }
		for value, has := range map[string]bool{
			"annotations":            pod.Annotations["a"] == "b",
			"pull secret":            slices.Contains(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: "registry"}),
			"pull policy":            spec.Containers[0].ImagePullPolicy == corev1.PullAlways,
			"class":                  spec.PriorityClassName == of("agents", "ours"),
			"no user":                spec.SecurityContext.RunAsUser == nil && spec.SecurityContext.RunAsGroup == nil && spec.SecurityContext.FSGroup == nil,
			"not root":               *spec.SecurityContext.RunAsNonRoot,
			"Linux":                  spec.NodeSelector[corev1.LabelOSStable] == "linux",
			"selector":               spec.NodeSelector[of("pool", "disk")] == of("agents", "ssd"),
			"tolerations":            slices.Contains(spec.Tolerations, ours) != agent,
			"anti-affinity":          agent || slices.ContainsFunc(spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, func(a corev1.PodAffinityTerm) bool { return a.TopologyKey == "rack" }),
			"node affinity":          agent || len(spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 1,
			"etcd's own affinity":    name != "statefulset/etcd" || len(spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) == 2,
			"on every tainted node":  !agent || slices.Contains(spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists}),
			"no service environment": spec.EnableServiceLinks != nil && !*spec.EnableServiceLinks,
		} {
			if !has {
				t.Errorf("%s lacks %s: %+v", name, value, pod)
			}
		}
	}
	for _, tree := range trees() {
		if strings.HasPrefix(tree, "static-pods/") {
			continue // the kubelet of a machine runs it
		}
		for name, pod := range podTemplates(t, render(t, tree)) {
			if pod.Spec.NodeSelector[corev1.LabelOSStable] != "linux" {
				t.Errorf("%s: %s may run on Windows: %v", tree, name, pod.Spec.NodeSelector)
			}
		}
	}
}

// Strings of digits stay strings in every object, also the name of the namespace.
func TestChart_StringsOfDigitsStayStrings(t *testing.T) {
	values := map[string]any{
		"image":   map[string]any{"repository": "1", "tag": "2", "pullSecrets": []string{"3"}},
		"cluster": map[string]any{"name": "4", "domain": "5"},
		"pods": map[string]any{
			"priorityClassName": "6", "nodeSelector": map[string]string{"a": "7"}, "annotations": map[string]string{"a": "8"},
			"tolerations": []any{map[string]string{"key": "9", "value": "10"}},
		},
		"agent": map[string]any{"mode": "DaemonSet", "priorityClassName": "11", "nodeSelector": map[string]string{"a": "12"}, "goMemoryLimit": "13"},
		"etcd": map[string]any{"embedded": map[string]any{
			"enabled": true, "image": "14", "storage": map[string]any{"size": "15", "className": "16"},
		}},
		"servers": map[string]any{"slicesvc": map[string]any{"managedBy": "17", "flags": map[string]string{"max-endpoints-per-slice": "18"}}},
		"certificates": map[string]any{
			"source": "CertManager", "issuerRef": map[string]string{"kind": "Issuer", "name": "19"}, "dnsNames": map[string]any{"gateway": []string{"20"}},
		},
		"monitoring": map[string]any{"scrape": "PodMonitor", "labels": map[string]string{"a": "21"}},
	}
	output, err := runHelm(t, "template", "trivet", chartFolder, "--namespace", "22", "-f", valuesFile(t, values))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objectsOf(t, []byte(output)) {
		if _, _, err := unstructured.NestedString(object.Object, "metadata", "namespace"); err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		if strings.Contains(jsonOf(t, object), system) {
			t.Errorf("%s %s names %s", object.GetKind(), object.GetName(), system)
		}
		typed, err := scheme.Scheme.New(object.GroupVersionKind())
		if runtime.IsNotRegisteredError(err) {
			continue
		}
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
		}
		if err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

func valuesFile(t *testing.T, values any) string {
	t.Helper()
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each flag of each server goes through the chart with its default, as a file of values has it, and
// arrives as that default.
func TestChart_EachFlagArrivesWithItsDefault(t *testing.T) {
	values := map[string]any{}
	for command, program := range programs() {
		flags := map[string]any{}
		eachFlag(program, func(flag *pflag.Flag) {
			var value any = defaultOf(flag)
			if kind := flag.Value.Type(); kind == "bool" || numeric(kind) {
				if err := yaml.Unmarshal([]byte(flag.DefValue), &value); err != nil {
					t.Fatal(err)
				}
			}
			flags[flag.Name] = value
		})
		values[strings.TrimPrefix(command, "/")] = map[string]any{"flags": flags}
	}
	objects := template(t, append(set(etcdEndpoint), "-f", valuesFile(t, map[string]any{"servers": values}))...)
	seen := 0
	for name, spec := range pods(t, objects) {
		for _, server := range servers(spec) {
			settings, flags := server.settings(t, objects), defaultFlags(server.program)
			eachFlag(server.program, func(flag *pflag.Flag) {
				seen++
				err := flags.Set(flag.Name, settings[flag.Name])
				if got := flags.Lookup(flag.Name).Value.String(); err != nil || got != flag.DefValue {
					t.Errorf("%s: --%s=%s means %s, %v, want %s", name, flag.Name, settings[flag.Name], got, err, flag.DefValue)
				}
			})
		}
	}
	if seen < 150 {
		t.Errorf("%d flags were tried", seen)
	}
}

// eachFlag calls visit for each flag of a server that the chart has no value of its own for.
func eachFlag(program process.Program, visit func(*pflag.Flag)) {
	defaultFlags(program).VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "dry-run" {
			visit(flag)
		}
	})
}

// defaultOf is the default of a flag as it is written on a command line.
func defaultOf(flag *pflag.Flag) string {
	if strings.HasSuffix(flag.Value.Type(), "Slice") {
		return strings.Trim(flag.DefValue, "[]")
	}
	return flag.DefValue
}

func numeric(kind string) bool {
	return strings.HasPrefix(kind, "int") || strings.HasPrefix(kind, "uint") || strings.HasPrefix(kind, "float")
}
