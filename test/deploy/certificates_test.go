package deploy

import (
	"encoding/json"
	"maps"
	"net"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const certManagerGroup = "cert-manager.io"

// certificateSpec is all that the component sets in the Certificate of a server.
type certificateSpec struct {
	SecretName  string                           `json:"secretName"`
	CommonName  string                           `json:"commonName"`
	Subject     struct{ Organizations []string } `json:"subject"`
	DNSNames    []string                         `json:"dnsNames"`
	IPAddresses []net.IP                         `json:"ipAddresses"`
	IsCA        bool                             `json:"isCA"`
	Usages      []string                         `json:"usages"`
	Duration    string                           `json:"duration"`
	RenewBefore string                           `json:"renewBefore"`
	PrivateKey  map[string]any                   `json:"privateKey"`
	IssuerRef   struct{ Kind, Name string }      `json:"issuerRef"`
}

// cert-manager's API is no part of Kubernetes, so no apiserver checks these objects here. They say
// the same as the certificates of trivet certs, field by field.
func TestCertManager_CertificatesAreThoseOfTrivetCerts(t *testing.T) {
	found := map[string]certificateSpec{}
	issuers := map[string]string{} // the Secret of its authority, by name
	for _, object := range render(t, certManager) {
		switch {
		case object.GroupVersionKind().Group != certManagerGroup:
		case object.GetKind() == "Issuer":
			secret, _, err := unstructured.NestedString(object.Object, "spec", "ca", "secretName")
			if err != nil {
				t.Fatal(err)
			}
			issuers[object.GetName()] = secret
		default:
			spec := specOf(t, object)
			found[spec.SecretName] = spec
		}
	}
	authority := found["trivet-ca"]
	if !authority.IsCA || issuers["trivet"] != authority.SecretName || authority.PrivateKey["rotationPolicy"] != "Never" {
		t.Errorf("the authority is %+v and issues as %v", authority, issuers)
	}
	for _, server := range certs.Servers() {
		spec, leaf := found["trivet-"+server+"-tls"], certs.ServerLeaf(server, system, "cluster.local")
		if spec.CommonName != leaf.User || !slices.Equal(spec.Subject.Organizations, leaf.Groups) || spec.IsCA || spec.IssuerRef.Name != "trivet" {
			t.Errorf("%s: %+v, want user %s in %v", server, spec, leaf.User, leaf.Groups)
		}
		if !slices.Equal(spec.DNSNames, leaf.DNSNames) || !slices.EqualFunc(spec.IPAddresses, leaf.IPs, net.IP.Equal) {
			t.Errorf("%s: valid for %v and %v, want %v and %v", server, spec.DNSNames, spec.IPAddresses, leaf.DNSNames, leaf.IPs)
		}
		if !slices.Equal(spec.Usages, []string{"digital signature", "server auth", "client auth"}) {
			t.Errorf("%s: usages %v", server, spec.Usages)
		}
	}
}

func specOf(t *testing.T, object *unstructured.Unstructured) certificateSpec {
	t.Helper()
	text, err := json.Marshal(object.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	var spec certificateSpec
	if err := decoder.Decode(&spec); err != nil {
		t.Fatalf("%s: %v", object.GetName(), err)
	}
	return spec
}

// The files that a server reads are keys of the Secrets and of the ConfigMap that trivet certs and
// cert-manager write. trivet-NAME-etcd is the user's.
func TestServers_ReadCertificatesFromWhatIsIssued(t *testing.T) {
	keys := map[string][]string{"trivet-ca": {"ca.crt", "client-ca.crt"}}
	for _, server := range certs.Servers() {
		keys["trivet-"+server+"-tls"] = []string{"tls.crt", "tls.key"}
		keys["trivet-"+server+"-etcd"] = []string{"ca.crt", "tls.crt", "tls.key"}
	}
	objects := render(t, "base")
	for _, spec := range pods(t, objects) {
		for _, server := range servers(spec) {
			sources := mounted(spec, server.Container)
			for flag, value := range server.settings(t, objects) {
				if !strings.HasPrefix(value, "/etc/") {
					continue
				}
				source := sources[path.Dir(value)]
				if !slices.Contains(keys[source], path.Base(value)) {
					t.Errorf("%s: --%s=%s is in %q, which has %v", server.program.Name, flag, value, source, keys[source])
				}
			}
			if sources["/etc/trivet/tls"] != "trivet-"+server.program.Name+"-tls" {
				t.Errorf("%s has the certificate of %s", server.program.Name, sources["/etc/trivet/tls"])
			}
			if sources["/etc/trivet/etcd"] != "trivet-"+server.program.Name+"-etcd" {
				t.Errorf("%s is a client of etcd by %s", server.program.Name, sources["/etc/trivet/etcd"])
			}
		}
	}
}

// mounted returns the names of the Secrets and ConfigMaps by the folder in the container.
func mounted(spec corev1.PodSpec, container corev1.Container) map[string]string {
	volumes, folders := map[string]string{}, map[string]string{}
	for _, volume := range spec.Volumes {
		switch {
		case volume.Secret != nil:
			volumes[volume.Name] = volume.Secret.SecretName
		case volume.ConfigMap != nil:
			volumes[volume.Name] = volume.ConfigMap.Name
		}
	}
	for _, mount := range container.VolumeMounts {
		folders[mount.MountPath] = volumes[mount.Name]
	}
	return maps.Clone(folders)
}

// The Job installs with the roles of its component at a real kube-apiserver, which checks the
// Secrets; the CronJob's next run has nothing to do.
func TestCerts_JobInstallsWithItsOwnRoles(t *testing.T) {
	cluster, objects := testkit.Cluster(t), render(t, everything)
	applyRoles(t, cluster, objects)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, username("certs"), "system:serviceaccounts"); err != nil {
		t.Fatal(err)
	}
	found := pods(t, objects)
	for _, step := range []struct{ pod, want string }{{"job/certs", "created"}, {"cronjob/certs", "unchanged"}} {
		container := found[step.pod].Containers[0]
		command := gobuild.Command(t, strings.TrimPrefix(container.Command[0], "/"))
		output, err := exec.CommandContext(t.Context(), command, append(container.Args, "--kubeconfig="+kubeconfig)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", step.pod, err, output)
		}
		if got := strings.Count(string(output), step.want); got != 1+len(certs.Servers()) {
			t.Errorf("%s: %d objects %s, want the ConfigMap and a Secret for each server:\n%s", step.pod, got, step.want, output)
		}
	}
	trust, err := testkit.Kube(t).CoreV1().ConfigMaps(system).Get(t.Context(), "trivet-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := certs.ParseCertificates([]byte(trust.Data["ca.crt"]))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := certs.ParseCertificates([]byte(trust.Data["client-ca.crt"]))
	if err != nil {
		t.Fatal(err)
	}
	if len(own) != 1 || len(clients) != 2 {
		t.Errorf("%d authorities of servers and %d of clients, want 1, and the cluster's beside it", len(own), len(clients))
	}
}
