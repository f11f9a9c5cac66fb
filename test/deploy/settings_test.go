package deploy

import (
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// programs are the servers by the path of their command in the image, each with defaults of its
// own.
func programs() map[string]process.Program {
	lease, bootstrap, slice, front := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	return map[string]process.Program{
		"/leasesvc":     leasesvc.Program(&lease),
		"/bootstrapsvc": bootstrapsvc.Program(&bootstrap),
		"/slicesvc":     slicesvc.Program(&slice),
		"/gateway":      gateway.Program(&front),
	}
}

// pods are the pods of a tree, by the name of what makes them.
func pods(t *testing.T, objects []*unstructured.Unstructured) map[string]corev1.PodSpec {
	t.Helper()
	found := map[string]corev1.PodSpec{}
	for name, template := range podTemplates(t, objects) {
		found[name] = template.Spec
	}
	return found
}

// podTemplates are the pods with their metadata.
func podTemplates(t *testing.T, objects []*unstructured.Unstructured) map[string]corev1.PodTemplateSpec {
	t.Helper()
	found := map[string]corev1.PodTemplateSpec{}
	for _, deployment := range ofKind[appsv1.Deployment](t, objects, "Deployment") {
		found[deployment.Name] = deployment.Spec.Template
	}
	for _, daemons := range ofKind[appsv1.DaemonSet](t, objects, "DaemonSet") {
		found["daemonset/"+daemons.Name] = daemons.Spec.Template
	}
	for _, set := range ofKind[appsv1.StatefulSet](t, objects, "StatefulSet") {
		template := set.Spec.Template
		for _, claim := range set.Spec.VolumeClaimTemplates { // as the controller adds them to a Pod
			source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}
			template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: source})
		}
		found["statefulset/"+set.Name] = template
	}
	for _, job := range ofKind[batchv1.Job](t, objects, "Job") {
		found["job/"+job.Name] = job.Spec.Template
	}
	for _, job := range ofKind[batchv1.CronJob](t, objects, "CronJob") {
		found["cronjob/"+job.Name] = job.Spec.JobTemplate.Spec.Template
	}
	for _, pod := range ofKind[corev1.Pod](t, objects, "Pod") {
		found[pod.Name] = corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
	}
	return found
}

// server is a container that runs one of the programs.
type server struct {
	corev1.Container
	program process.Program
}

func servers(spec corev1.PodSpec) []server {
	var found []server
	known := programs()
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		if program, ok := known[container.Command[0]]; ok {
			found = append(found, server{Container: container, program: program})
		}
	}
	return found
}

// podIP stands for what the kubelet fills in.
const podIP = "192.0.2.7"

// settings are the flags of a server as the kubelet would hand them over, from ConfigMap,
// environment and arguments in this order of growing weight.
func (s server) settings(t *testing.T, objects []*unstructured.Unstructured) map[string]string {
	t.Helper()
	environment := map[string]string{}
	for _, from := range s.EnvFrom {
		maps.Copy(environment, configMap(t, objects, from.ConfigMapRef.Name))
	}
	for _, variable := range s.Env {
		environment[variable.Name] = variable.Value
		if variable.ValueFrom != nil {
			environment[variable.Name] = podIP
		}
	}
	settings := map[string]string{}
	for name, value := range environment {
		if flag, ours := strings.CutPrefix(name, "TRIVET_"); ours {
			settings[strings.ToLower(strings.ReplaceAll(flag, "_", "-"))] = value
		}
	}
	for _, argument := range s.Args {
		name, value, given := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		if !given {
			value = "true"
		}
		for variable, content := range environment {
			value = strings.ReplaceAll(value, "$("+variable+")", content)
		}
		settings[name] = value
	}
	return settings
}

func configMap(t *testing.T, objects []*unstructured.Unstructured, name string) map[string]string {
	t.Helper()
	for _, config := range ofKind[corev1.ConfigMap](t, objects, "ConfigMap") {
		if config.Name == name {
			return config.Data
		}
	}
	t.Errorf("ConfigMap %s is not in the tree", name)
	return nil
}

// configure sets the flags of a server and returns its configuration. Files below /etc are replaced
// by those of the machine that runs the test, for the server reads them.
func configure(t *testing.T, s server, settings map[string]string, files string) process.Config {
	t.Helper()
	cfg := process.DefaultConfig(s.program)
	flags := pflag.NewFlagSet(s.program.Name, pflag.ContinueOnError)
	cfg.RegisterFlags(flags)
	s.program.RegisterFlags(flags)
	for name, value := range settings {
		if strings.HasPrefix(value, "/etc/") {
			value = filepath.Join(files, filepath.Base(value))
		}
		if err := flags.Set(name, value); err != nil {
			t.Errorf("--%s=%s: %v", name, value, err)
		}
	}
	cfg.Kube.Kubeconfig = testkit.Cluster(t).Kubeconfig() // in a pod it is the service account
	return cfg
}

func TestTrees_RunTheServersTheyAreFor(t *testing.T) {
	all := []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"}
	for tree, want := range map[string][]string{
		"base":                     all,
		"overlays/standalone":      all,
		"overlays/sidecar":         {"gateway", "leasesvc", "slicesvc"},
		"overlays/static-pods":     nil,
		"static-pods/bootstrapsvc": {"bootstrapsvc"},
		"static-pods/leasesvc":     {"leasesvc"},
		"static-pods/slicesvc":     {"slicesvc"},
		mirroringPod:               {"slicesvc"},
		"static-pods/gateway":      {"gateway"},
		sharedPod:                  {"bootstrapsvc"},
	} {
		var got []string
		for _, spec := range pods(t, render(t, tree)) {
			for _, server := range servers(spec) {
				got = append(got, server.program.Name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s runs %v, want %v", tree, got, want)
		}
	}
}

func TestServers_TakeEverySetting(t *testing.T) {
	authority := identitytest.NewAuthority(t, "trivet")
	files := filepath.Dir(authority.Files(t, "server", authority).CertFile)
	identitytest.Replace(t, filepath.Join(files, "client-ca.crt"), identitytest.Bundle(authority))
	for _, tree := range trees() {
		objects := render(t, tree)
		for pod, spec := range pods(t, objects) {
			for _, server := range servers(spec) {
				t.Run(tree+"/"+pod, func(t *testing.T) {
					cfg := configure(t, server, server.settings(t, objects), files)
					for _, problem := range slices.Concat(cfg.Validate(server.program), server.program.Validate()) {
						t.Error(problem)
					}
				})
			}
		}
	}
}

func TestServers_ListenWhereTheyAreLookedFor(t *testing.T) {
	for _, tree := range trees() {
		objects := render(t, tree)
		services := ofKind[corev1.Service](t, objects, "Service")
		if slices.Contains(serverPods(), tree) { // the Services of static Pods are in the cluster
			services = ofKind[corev1.Service](t, render(t, "overlays/static-pods"), "Service")
		}
		for pod, spec := range pods(t, objects) {
			for _, server := range servers(spec) {
				t.Run(tree+"/"+pod, func(t *testing.T) {
					settings := server.settings(t, objects)
					grpc, admin := portOf(t, settings["listen"]), portOf(t, settings["admin-listen"])
					if grpc != server.program.GRPCPort || admin != server.program.AdminPort {
						t.Errorf("listens on %d and %d, not on %s's own %d and %d",
							grpc, admin, server.program.Name, server.program.GRPCPort, server.program.AdminPort)
					}
					checkPort(t, server, "grpc", grpc)
					checkPort(t, server, "admin", admin)
					checkProbes(t, server, admin)
					checkService(t, services, server, grpc)
				})
			}
		}
	}
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// declaresPorts says whether a container declares its ports; on a machine's own network it does
// not.
func (s server) declaresPorts() bool { return len(s.Ports) > 0 }

func checkPort(t *testing.T, s server, name string, want int) {
	t.Helper()
	has := slices.ContainsFunc(s.Ports, func(port corev1.ContainerPort) bool {
		return port.Name == name && int(port.ContainerPort) == want
	})
	if s.declaresPorts() && !has {
		t.Errorf("declares ports %v, and none is %s with %d, where the server listens", s.Ports, name, want)
	}
}

func checkProbes(t *testing.T, s server, admin int) {
	t.Helper()
	probes := []*corev1.Probe{s.LivenessProbe}
	if s.declaresPorts() {
		probes = append(probes, s.ReadinessProbe)
	}
	for _, probe := range probes {
		if probe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("probe of %s is in %q, and the admin server has TLS", probe.HTTPGet.Path, probe.HTTPGet.Scheme)
		}
		if target := probe.HTTPGet.Port; target.StrVal != "admin" && target.IntValue() != admin {
			t.Errorf("probe of %s asks port %s, not the admin server's", probe.HTTPGet.Path, target.String())
		}
	}
}

func checkService(t *testing.T, services []*corev1.Service, s server, grpc int) {
	t.Helper()
	leads := slices.ContainsFunc(services, func(service *corev1.Service) bool {
		port := service.Spec.Ports[0]
		return service.Spec.Selector["app.kubernetes.io/name"] == s.program.Name &&
			service.Name == s.program.Name && port.TargetPort.StrVal == "grpc" && int(port.Port) == grpc
	})
	if s.declaresPorts() && !leads {
		t.Errorf("no Service %s leads from port %d to it", s.program.Name, grpc)
	}
}
