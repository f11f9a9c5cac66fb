package certs

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"slices"

	"github.com/trivet-dev/trivet/internal/etcdroles"
)

const (
	// GatewayGroup is in the certificates of gateways, which may name an original caller.
	GatewayGroup = "trivet:gateways"
	// ServerGroup is in the certificates of services, which may forward heartbeats.
	ServerGroup = "trivet:servers"
)

// Servers are the programs that need a certificate, by the name of their Service.
func Servers() []string { return []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"} }

// Leaf describes a certificate. User and Groups become common name and organizations, from which
// Kubernetes takes user name and groups.
type Leaf struct {
	User     string
	Groups   []string
	DNSNames []string
	IPs      []net.IP
	// Serves adds the usage of a server to that of a client.
	Serves bool
}

// ServerLeaf describes the certificate of a server: user trivet:<server> in the group of gateways
// or servers. It is valid for the names of its Service in the namespace and for loopback.
func ServerLeaf(server, namespace, clusterDomain string, dnsNames ...string) Leaf {
	group := ServerGroup
	if server == "gateway" {
		group = GatewayGroup
	}
	inNamespace := server + "." + namespace
	return Leaf{
		User:   "trivet:" + server,
		Groups: []string{group},
		DNSNames: append([]string{
			server, inNamespace, inNamespace + ".svc", inNamespace + ".svc." + clusterDomain, "localhost",
		}, dnsNames...),
		IPs:    []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		Serves: true,
	}
}

// EtcdLeaf describes the certificate of the members of Trivet's own etcd: user trivet:etcd, which
// is in no group. It is valid for headless Service etcd in the namespace, for each member behind
// it, and for loopback. By the name of any member it may also be a client.
func EtcdLeaf(namespace, clusterDomain string) Leaf {
	service := "etcd." + namespace + ".svc"
	return Leaf{
		User:     "trivet:etcd",
		DNSNames: []string{"etcd", "etcd." + namespace, service, service + "." + clusterDomain, "*." + service, "*." + service + "." + clusterDomain, "localhost"},
		IPs:      []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		Serves:   true,
	}
}

// EtcdClientLeaf describes the certificate of a server as a client of etcd: user trivet:<server>.
// The members of Trivet's own etcd know their clients by its DNS name.
func EtcdClientLeaf(server, namespace string) Leaf {
	return Leaf{User: etcdroles.User(server), DNSNames: []string{"client.etcd." + namespace + ".svc"}}
}

// ClientLeaf describes the certificate of a user, which serves nothing.
func ClientLeaf(user string, groups ...string) Leaf { return Leaf{User: user, Groups: groups} }

// NodeLeaf describes the certificate of a node's agent.
func NodeLeaf(node string) Leaf { return ClientLeaf("system:node:"+node, "system:nodes") }

func (l Leaf) template() *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: l.User, Organization: l.Groups},
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           l.usages(),
		BasicConstraintsValid: true,
		DNSNames:              l.DNSNames,
		IPAddresses:           l.IPs,
	}
}

func (l Leaf) usages() []x509.ExtKeyUsage {
	if l.Serves {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
}

// describes reports whether the certificate says what l says, in any order.
func (l Leaf) describes(certificate *x509.Certificate) bool {
	var have, want []string
	for _, ip := range certificate.IPAddresses {
		have = append(have, ip.String())
	}
	for _, ip := range l.IPs {
		want = append(want, ip.String())
	}
	return certificate.Subject.CommonName == l.User && sameSet(certificate.Subject.Organization, l.Groups) &&
		sameSet(certificate.DNSNames, l.DNSNames) && sameSet(have, want) && sameSet(certificate.ExtKeyUsage, l.usages())
}

func sameSet[T comparable](a, b []T) bool {
	within := func(a, b []T) bool {
		return !slices.ContainsFunc(a, func(item T) bool { return !slices.Contains(b, item) })
	}
	return within(a, b) && within(b, a)
}
