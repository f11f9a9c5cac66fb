// Package etcdroles has the rights in etcd that each server needs. deploy/etcd-roles.sh, the
// documentation and the tests are made from it.
package etcdroles

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultRegistry is the default of kube-apiserver's flag --etcd-prefix.
const DefaultRegistry = "/registry"

// Grant is a right to the keys from Key up to, and without, End. With an empty End it is a right to
// Key alone.
type Grant struct {
	Key, End string
	// Write is a right to read and to write. Without it the right is to read.
	Write bool
	// For says what needs the right.
	For string
}

// Role is the role of a server. Its name is that of the user, which is the common name of the
// server's client certificate.
type Role struct {
	Name   string
	Grants []Grant
}

// User returns the user of a server at etcd.
func User(server string) string { return "trivet:" + server }

// Of returns the roles of the servers of a cluster. root is the prefix of all keys of the cluster,
// with a slash at its end, and registry that of kube-apiserver, without one.
func Of(root, registry string) []Role {
	roles := []Role{
		{Name: "bootstrapsvc", Grants: []Grant{
			prefix(root+"apiservers/", true, "the kube-apiservers"),
			prefix(root+"findings/", true, "findings of the audit"),
			prefix(root+"ignores/", true, "ignored findings"),
			prefix(root+"repairplans/", true, "plans of repairs"),
			prefix(root+"repairs/", true, "repairs"),
			prefix(registry+"/ranges/", true, "allocated node ports and ClusterIPs"),
			prefix(registry+"/masterleases/", false, "--adopt-master-leases"),
			{Key: registry + "/services/specs/default/kubernetes", For: "proof that etcd is that of the cluster"},
		}},
		{Name: "gateway", Grants: []Grant{
			prefix(root+"members/", false, "the replicas of all servers"),
		}},
		{Name: "leasesvc", Grants: []Grant{
			prefix(root+"checkpoints/leasesvc/", true, "checkpoints of sessions"),
		}},
		{Name: "slicesvc"},
	}
	for i := range roles {
		server := roles[i].Name
		common := []Grant{
			prefix(root+"check/", true, "trivet check --pre"),
			prefix(root+"members/"+server+"/", true, "its replicas"),
		}
		if server != "gateway" {
			terms := prefix(root+"terms/"+server+"/", true, "its terms")
			common = append(common, terms, Grant{Key: root + "switches/" + server, Write: true, For: "its loops in dry run that write"}, Grant{Key: root + "members/" + server, End: terms.End, For: "one watch of all"})
		}
		roles[i].Name, roles[i].Grants = User(server), append(common, roles[i].Grants...)
	}
	return roles
}

// Beyond returns the grants that no role of a server has, for keys outside of Trivet's own. The
// first element of a key may be any, because it is the prefix of kube-apiserver's keys.
func Beyond(held []Grant) []Grant {
	return slices.DeleteFunc(slices.Clone(held), func(g Grant) bool {
		allowed := []Grant{prefix("/trivet/", true, "")}
		for _, role := range Of("/trivet/", "/"+strings.SplitN(g.Key+"/", "/", 3)[1]) {
			allowed = append(allowed, role.Grants...)
		}
		return slices.ContainsFunc(allowed, g.within)
	})
}

func (g Grant) within(other Grant) bool {
	return other.Key <= g.Key && g.end() <= other.end() && g.End != toLastKey && (other.Write || !g.Write)
}

// toLastKey is the End of a grant of etcd without an end.
const toLastKey = "\x00"

func (g Grant) end() string {
	if g.End == "" {
		return g.Key + "\x00" // the next key
	}
	return g.End
}

func prefix(key string, write bool, reason string) Grant {
	return Grant{Key: key, End: prefixEnd(key), Write: write, For: reason}
}

// prefixEnd returns the first key after those with a prefix, which ends with a slash.
func prefixEnd(key string) string { return strings.TrimSuffix(key, "/") + "0" }

// Script returns deploy/etcd-roles.sh, which makes the roles and the users with etcdctl.
func Script() string {
	var text strings.Builder
	text.WriteString(`#!/bin/sh
# Makes the roles and the users of Trivet's servers in an etcd with users. A user is known by the common name of its
# certificate, so it has no password. Run it as a user with role root, with the name of the cluster, and with the prefix of
# kube-apiserver's keys if it is not ` + DefaultRegistry + `:
#
#   ETCDCTL_ENDPOINTS=… ETCDCTL_CACERT=… ETCDCTL_CERT=… ETCDCTL_KEY=… sh deploy/etcd-roles.sh prod-1
#
# A second run adds the rights that are missing. Written by go test ./internal/etcdroles -args -update
set -eu
cluster=${1:?give the name of the cluster, as in --cluster of the servers}
registry=${2:-` + DefaultRegistry + `}
root=/trivet/$cluster

make() {
  etcdctl role get "$1" >/dev/null 2>&1 || etcdctl role add "$1"
  etcdctl user get "$1" >/dev/null 2>&1 || etcdctl user add "$1" --no-password
  etcdctl user grant-role "$1" "$1"
}
grant() { etcdctl role grant-permission "$@"; }
`)
	for _, role := range Of("$root/", "$registry") {
		fmt.Fprintf(&text, "\nmake %s\n", role.Name)
		for _, grant := range role.Grants {
			kind := "read"
			if grant.Write {
				kind = "readwrite"
			}
			keys := `"` + grant.Key + `"`
			if grant.End != "" {
				keys += ` "` + grant.End + `"`
			}
			fmt.Fprintf(&text, "grant %s %s %s # %s\n", role.Name, kind, keys, grant.For)
		}
	}
	return text.String()
}
