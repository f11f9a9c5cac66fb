package deploy

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// variants are values beyond the combinations, which kustomize does not have.
func variants() map[string][]string {
	embedded := []string{"etcd.embedded.enabled=true", "servers.slicesvc.enabled=false"}
	return map[string][]string{
		"embedded etcd": embedded,
		"embedded etcd without volumes, one member": append(embedded[:2:2], "etcd.embedded.members=1", "etcd.embedded.storage.ephemeral=true",
			"etcd.embedded.antiAffinity=preferred"),
		"embedded etcd beside upstream's slices": {"etcd.embedded.enabled=true", "servers.slicesvc.managedBy=trivet.dev"},
		"small":                                  {etcdEndpoint, "size=small"},
		"large":                                  {etcdEndpoint, "size=large", "servers.leasesvc.replicas=3"},
		"one server":                             {etcdEndpoint, "servers.bootstrapsvc.enabled=false", "servers.slicesvc.enabled=false", "servers.gateway.enabled=false"},
		"no extras": {etcdEndpoint, "networkPolicy.enabled=false", "flowControl.enabled=false", "pods.disruptionBudget=false",
			"pods.spread=false"},
		"dry runs": {etcdEndpoint, "servers.slicesvc.dryRun={endpointslices,endpointslice-mirroring}", "servers.leasesvc.dryRun={node-health,taint-eviction}",
			"servers.bootstrapsvc.dryRun={system-namespaces}"},
		"rules and dashboards": {etcdEndpoint, "monitoring.rules=true", "monitoring.dashboards=true"},
		"everything set": {etcdEndpoint, "image.digest=sha256:" + strings.Repeat("a", 64), "image.pullPolicy=Always", "image.pullSecrets[0]=registry",
			"cluster.name=prod-1", "cluster.domain=example.org", "servers.gateway.service.type=LoadBalancer",
			"servers.gateway.service.annotations.a=b", "certificates.dnsNames.gateway[0]=trivet.example.org", "certificates.lifetime=2160h",
			"servers.slicesvc.flags.max-endpoints-per-slice=50", "pods.nodeSelector.a=b", "pods.tolerations[0].operator=Exists",
			"pods.annotations.a=b", "log.level=debug", "networkPolicy.nodes[0]=10.0.0.0/8", "networkPolicy.clients[0].podSelector.matchLabels.a=b",
			"servers.leasesvc.resources.limits.memory=2Gi", "servers.leasesvc.goMemoryLimit=1800MiB", "servers.leasesvc.loops=*"},
	}
}

// The servers take every setting of every variant: flags, loops and values.
func TestChart_ServersTakeEverySetting(t *testing.T) {
	authority := identitytest.NewAuthority(t, "trivet")
	files := filepath.Dir(authority.Files(t, "server", authority).CertFile)
	identitytest.Replace(t, filepath.Join(files, "client-ca.crt"), identitytest.Bundle(authority))
	for name, values := range variants() {
		objects := template(t, set(append(values, "namespace.create=true")...)...)
		for pod, spec := range pods(t, objects) {
			for _, server := range servers(spec) {
				t.Run(name+"/"+pod, func(t *testing.T) {
					cfg := configure(t, server, server.settings(t, objects), files)
					for _, problem := range slices.Concat(cfg.Validate(server.program), server.program.Validate()) {
						t.Error(problem)
					}
				})
			}
		}
	}
}

// The package has the files behind the chart's links, so it renders what the folder does.
func TestChart_PackageEqualsTheFolder(t *testing.T) {
	folder := t.TempDir()
	if _, err := runHelm(t, "package", chartFolder, "--destination", folder, "--version", "9.8.7", "--app-version", "devel"); err != nil {
		t.Fatal(err)
	}
	values := set(etcdEndpoint, "servers.leasesvc.nodeHealth=true", "agent.mode=DaemonSet")
	output, err := runHelm(t, append([]string{"template", "trivet", filepath.Join(folder, "trivet-9.8.7.tgz"), "--namespace", system}, values...)...)
	if err != nil {
		t.Fatal(err)
	}
	packaged, linked := plainTexts(t, objectsOf(t, []byte(output))), plainTexts(t, template(t, values...))
	if len(linked) == 0 || !maps.Equal(packaged, linked) {
		t.Errorf("the package renders %v, the folder %v", slices.Sorted(maps.Keys(packaged)), slices.Sorted(maps.Keys(linked)))
	}
}

// A release in another namespace names no object of trivet-system, also not in arguments.
func TestChart_OtherNamespace(t *testing.T) {
	static := []string{"servers.bootstrapsvc.mode=StaticPod", "servers.leasesvc.mode=StaticPod", "agent.mode=StaticPod"}
	for name, values := range map[string][]string{
		"agent":    {etcdEndpointElsewhere, "agent.mode=DaemonSet", "namespace.create=true", "servers.leasesvc.nodeHealth=true"},
		"static":   append([]string{etcdEndpointElsewhere}, static...),
		"print":    append([]string{etcdEndpointElsewhere, "staticPods.print=true"}, static...),
		"embedded": {"etcd.embedded.enabled=true", "servers.slicesvc.enabled=false", "certificates.source=CertManager", "certificates.authorityInCluster=true", "monitoring.scrape=ServiceMonitor"},
	} {
		t.Run(name, func(t *testing.T) {
			output, err := runHelm(t, append([]string{"template", "trivet", chartFolder, "--namespace", "elsewhere"}, set(values...)...)...)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(output) {
				if strings.Contains(line, system) {
					t.Errorf("names %s: %s", system, line)
				}
			}
			if !strings.Contains(output, "elsewhere") {
				t.Error("names no namespace, so this test proves nothing")
			}
		})
	}
}

const etcdEndpointElsewhere = "etcd.endpoints[0]=https://etcd.example.org:2379"

// Every rule file and dashboard of deploy/monitoring is in the chart, whatever its folder is. Tests
// of rules and other files are not.
func TestChart_HasRulesAndDashboardsOfTheFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "chart")
	copyChart(t, folder)
	for name, content := range map[string]string{
		"alerts/leasesvc.yaml":        "groups:\n- name: leases\n  rules:\n  - alert: A\n    expr: up == 0\n    annotations:\n      summary: '{{ $labels.job }}'\n",
		"slices_rules.yaml":           "groups: []\n",
		"tests/leasesvc_test.yaml":    "rule_files: [../alerts/leasesvc.yaml]\ntests: []\n",
		"dashboards/fleet.json":       `{"title": "{{ fleet }}"}`,
		"dashboards/fleet.png":        "x",
		"runbooks/not-a-dashboard.md": "x",
	} {
		path := filepath.Join(folder, "files/monitoring", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	values := set(etcdEndpoint, "monitoring.rules=true", "monitoring.dashboards=true", "monitoring.labels.release=prometheus")
	output, err := runHelm(t, append([]string{"template", "trivet", folder, "--namespace", system, "--show-only", "templates/monitoring.yaml"}, values...)...)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*unstructured.Unstructured{}
	for _, object := range objectsOf(t, []byte(output)) {
		found[object.GetKind()+" "+object.GetName()] = object
	}
	if len(found) != 3 || found["PrometheusRule trivet-slices-rules"] == nil {
		t.Errorf("renders %v, want two PrometheusRules and a ConfigMap", found)
	}
	alert := found["PrometheusRule trivet-leasesvc"]
	if alert == nil || alert.GetLabels()["release"] != "prometheus" || !strings.Contains(jsonOf(t, alert), "{{ $labels.job }}") {
		t.Errorf("the rules are %v", alert)
	}
	dashboard := found["ConfigMap trivet-dashboard-fleet"]
	if dashboard == nil || dashboard.GetLabels()["grafana_dashboard"] != "1" {
		t.Fatalf("the dashboard is %v", dashboard)
	}
	if data, _, _ := unstructured.NestedString(dashboard.Object, "data", "fleet.json"); data != `{"title": "{{ fleet }}"}` {
		t.Errorf("the dashboard has %q", data)
	}
}

// copyChart copies the chart. base and components stay links; monitoring becomes an empty folder.
func copyChart(t *testing.T, to string) {
	t.Helper()
	chart, err := filepath.Abs(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(to, "files/monitoring"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Chart.yaml", "values.yaml", "values.schema.json", "templates", "files/base", "files/components"} {
		if err := os.Symlink(filepath.Join(chart, name), filepath.Join(to, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func jsonOf(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	text, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Prometheus reads /metrics of every Deployment with a certificate that the chart has issued and
// whose user may read it.
func TestChart_MonitorsReachTheServers(t *testing.T) {
	for _, kind := range []string{"PodMonitor", "ServiceMonitor"} {
		t.Run(kind, func(t *testing.T) {
			objects := template(t, set(etcdEndpoint, "monitoring.scrape="+kind, "servers.bootstrapsvc.mode=StaticPod")...)
			var monitored []string
			services := ofKind[corev1.Service](t, objects, "Service")
			for _, object := range objects {
				if object.GetKind() != kind {
					continue
				}
				monitored = append(monitored, object.GetName())
				text := jsonOf(t, object)
				server := strings.TrimPrefix(object.GetName(), "trivet-")
				for _, want := range []string{`"port":"admin"`, `"scheme":"https"`, `"serverName":"` + server + `"`, `"trivet-metrics-tls"`, `"app.kubernetes.io/name":"` + server + `"`} {
					if !strings.Contains(text, want) {
						t.Errorf("%s lacks %s: %s", object.GetName(), want, text)
					}
				}
				has := slices.ContainsFunc(services, func(s *corev1.Service) bool {
					return s.Labels["app.kubernetes.io/component"] == "metrics" && s.Spec.Selector["app.kubernetes.io/name"] == server
				})
				if has != (kind == "ServiceMonitor") {
					t.Errorf("%s: a Service of its admin port exists: %v", object.GetName(), has)
				}
			}
			if want := []string{"trivet-gateway", "trivet-leasesvc", "trivet-slicesvc"}; !slices.Equal(monitored, want) {
				t.Errorf("%v are monitored, want %v", monitored, want)
			}
			if args := jobArguments(t, objects); !slices.Contains(args, "--issue=metrics") {
				t.Errorf("the Job issues no certificate for Prometheus: %v", args)
			}
		})
	}
}

// cert-manager's further certificates say the same as those of trivet certs.
func TestChart_CertManagerIssuesForEtcdAndMetrics(t *testing.T) {
	found := map[string]certificateSpec{}
	for _, object := range template(t, set("etcd.embedded.enabled=true", "servers.slicesvc.enabled=false", "monitoring.scrape=PodMonitor",
		"certificates.source=CertManager", "certificates.issuerRef.kind=ClusterIssuer", "certificates.issuerRef.name=company", "certificates.acceptSharedIssuer=true")...) {
		if object.GetKind() == "Issuer" {
			t.Errorf("Issuer %s exists beside the given one", object.GetName())
		}
		if object.GetKind() == "Certificate" {
			spec := specOf(t, object)
			found[spec.SecretName] = spec
			if spec.IssuerRef.Kind != "ClusterIssuer" || spec.IssuerRef.Name != "company" {
				t.Errorf("%s has issuer %+v", object.GetName(), spec.IssuerRef)
			}
		}
	}
	for secret, leaf := range map[string]certs.Leaf{
		"trivet-etcd-server-tls": certs.EtcdLeaf(system, "cluster.local"),
		"trivet-leasesvc-etcd":   certs.EtcdClientLeaf("leasesvc", system),
		"trivet-metrics-tls":     certs.ClientLeaf("trivet:metrics"),
		"trivet-leasesvc-tls":    certs.ServerLeaf("leasesvc", system, "cluster.local"),
	} {
		spec := found[secret]
		names, want := slices.Sorted(slices.Values(spec.DNSNames)), slices.Sorted(slices.Values(leaf.DNSNames))
		if spec.CommonName != leaf.User || !slices.Equal(spec.Subject.Organizations, leaf.Groups) || !slices.Equal(names, want) ||
			!slices.EqualFunc(spec.IPAddresses, leaf.IPs, net.IP.Equal) || slices.Contains(spec.Usages, "server auth") != leaf.Serves {
			t.Errorf("%s: %+v, want %+v", secret, spec, leaf)
		}
	}
	if len(found) != 8 {
		t.Errorf("%d certificates, want those of three servers and of their clients of etcd, that of etcd's members and that of Prometheus", len(found))
	}
}

// The etcd of the chart is not older than the client in the servers, whose version gets the fixes
// of etcd.
func TestChart_EtcdIsNotOlderThanItsClient(t *testing.T) {
	_, rest, found := strings.Cut(read(t, "go.mod"), "go.etcd.io/etcd/client/v3 v")
	if !found {
		t.Fatal("go.mod has no client of etcd")
	}
	client := version.MustParseSemantic(strings.Fields(rest)[0])
	image := pods(t, template(t, set("etcd.embedded.enabled=true", "servers.slicesvc.enabled=false")...))["statefulset/etcd"].Containers[0].Image
	_, tag, _ := strings.Cut(image, ":")
	release, _, _ := strings.Cut(tag, "-") // the part behind it numbers builds of the image
	if server := version.MustParseSemantic(release); server.LessThan(client) {
		t.Errorf("the image %s is older than the client %s", image, client)
	}
}

// Every port of every Pod is in a NetworkPolicy. Ports of servers are open to their callers alone:
// the gateway for slicesvc and bootstrapsvc, Prometheus for metrics. leasesvc is also open to the
// addresses of machines, which agents have.
func TestChart_NetworkPoliciesNameEveryPortAndItsCallers(t *testing.T) {
	objects := template(t, set("etcd.embedded.enabled=true", "servers.slicesvc.managedBy=trivet.dev", "networkPolicy.nodes[0]=10.0.0.0/8")...)
	policies := map[string]*networkingv1.NetworkPolicy{}
	for _, policy := range ofKind[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy") {
		policies[policy.Name] = policy
	}
	if deny := policies["trivet"]; deny == nil || len(deny.Spec.Ingress) > 0 || deny.Spec.PodSelector.MatchLabels["app.kubernetes.io/part-of"] != "trivet" {
		t.Errorf("no policy denies by default: %+v", deny)
	}
	want := map[string]map[int32]string{
		"bootstrapsvc": {7602: "gateway", 7612: "monitoring"},
		"gateway":      {7600: "any", 7680: "any", 7610: "monitoring"},
		"leasesvc":     {7601: "gateway leasesvc 10.0.0.0/8", 7611: "monitoring"},
		"slicesvc":     {7603: "gateway", 7613: "monitoring"},
		"etcd":         {2379: "bootstrapsvc etcd gateway leasesvc slicesvc", 2380: "etcd", 2381: "monitoring"},
	}
	specs := pods(t, objects)
	specs["etcd"] = specs["statefulset/etcd"]
	for name, ports := range want {
		got := map[int32]string{}
		for _, rule := range policies[name].Spec.Ingress {
			for _, port := range rule.Ports {
				got[port.Port.IntVal] = callers(rule.From)
			}
		}
		for _, port := range specs[name].Containers[0].Ports {
			if got[port.ContainerPort] != ports[port.ContainerPort] {
				t.Errorf("port %d of %s is open to %q, want %q", port.ContainerPort, name, got[port.ContainerPort], ports[port.ContainerPort])
			}
		}
		if len(got) != len(specs[name].Containers[0].Ports) || len(got) != len(ports) {
			t.Errorf("%s: ports %v are open, and the Pod has %d", name, got, len(specs[name].Containers[0].Ports))
		}
	}
}

// callers names the sources of a rule.
func callers(from []networkingv1.NetworkPolicyPeer) string {
	var found []string
	for _, peer := range from {
		switch {
		case peer.IPBlock != nil:
			found = append(found, peer.IPBlock.CIDR)
		case peer.NamespaceSelector != nil:
			found = append(found, peer.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"])
		case len(peer.PodSelector.MatchExpressions) > 0:
			found = append(found, peer.PodSelector.MatchExpressions[0].Values...)
		default:
			found = append(found, peer.PodSelector.MatchLabels["app.kubernetes.io/name"])
		}
	}
	if len(found) == 0 {
		return "any"
	}
	return strings.Join(found, " ")
}
