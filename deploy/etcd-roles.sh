#!/bin/sh
# Makes the roles and the users of Trivet's servers in an etcd with users. A user is known by the common name of its
# certificate, so it has no password. Run it as a user with role root, with the name of the cluster, and with the prefix of
# kube-apiserver's keys if it is not /registry:
#
#   ETCDCTL_ENDPOINTS=… ETCDCTL_CACERT=… ETCDCTL_CERT=… ETCDCTL_KEY=… sh deploy/etcd-roles.sh prod-1
#
# A second run adds the rights that are missing. Written by go test ./internal/etcdroles -args -update
set -eu
cluster=${1:?give the name of the cluster, as in --cluster of the servers}
registry=${2:-/registry}
root=/trivet/$cluster

make() {
  etcdctl role get "$1" >/dev/null 2>&1 || etcdctl role add "$1"
  etcdctl user get "$1" >/dev/null 2>&1 || etcdctl user add "$1" --no-password
  etcdctl user grant-role "$1" "$1"
}
grant() { etcdctl role grant-permission "$@"; }

make trivet:bootstrapsvc
grant trivet:bootstrapsvc readwrite "$root/check/" "$root/check0" # trivet check --pre
grant trivet:bootstrapsvc readwrite "$root/members/bootstrapsvc/" "$root/members/bootstrapsvc0" # its replicas
grant trivet:bootstrapsvc readwrite "$root/terms/bootstrapsvc/" "$root/terms/bootstrapsvc0" # its terms
grant trivet:bootstrapsvc readwrite "$root/switches/bootstrapsvc" # its loops in dry run that write
grant trivet:bootstrapsvc read "$root/members/bootstrapsvc" "$root/terms/bootstrapsvc0" # one watch of all
grant trivet:bootstrapsvc readwrite "$root/apiservers/" "$root/apiservers0" # the kube-apiservers
grant trivet:bootstrapsvc readwrite "$root/findings/" "$root/findings0" # findings of the audit
grant trivet:bootstrapsvc readwrite "$root/ignores/" "$root/ignores0" # ignored findings
grant trivet:bootstrapsvc readwrite "$root/repairplans/" "$root/repairplans0" # plans of repairs
grant trivet:bootstrapsvc readwrite "$root/repairs/" "$root/repairs0" # repairs
grant trivet:bootstrapsvc readwrite "$registry/ranges/" "$registry/ranges0" # allocated node ports and ClusterIPs
grant trivet:bootstrapsvc read "$registry/masterleases/" "$registry/masterleases0" # --adopt-master-leases
grant trivet:bootstrapsvc read "$registry/services/specs/default/kubernetes" # proof that etcd is that of the cluster

make trivet:gateway
grant trivet:gateway readwrite "$root/check/" "$root/check0" # trivet check --pre
grant trivet:gateway readwrite "$root/members/gateway/" "$root/members/gateway0" # its replicas
grant trivet:gateway read "$root/members/" "$root/members0" # the replicas of all servers

make trivet:leasesvc
grant trivet:leasesvc readwrite "$root/check/" "$root/check0" # trivet check --pre
grant trivet:leasesvc readwrite "$root/members/leasesvc/" "$root/members/leasesvc0" # its replicas
grant trivet:leasesvc readwrite "$root/terms/leasesvc/" "$root/terms/leasesvc0" # its terms
grant trivet:leasesvc readwrite "$root/switches/leasesvc" # its loops in dry run that write
grant trivet:leasesvc read "$root/members/leasesvc" "$root/terms/leasesvc0" # one watch of all
grant trivet:leasesvc readwrite "$root/checkpoints/leasesvc/" "$root/checkpoints/leasesvc0" # checkpoints of sessions

make trivet:slicesvc
grant trivet:slicesvc readwrite "$root/check/" "$root/check0" # trivet check --pre
grant trivet:slicesvc readwrite "$root/members/slicesvc/" "$root/members/slicesvc0" # its replicas
grant trivet:slicesvc readwrite "$root/terms/slicesvc/" "$root/terms/slicesvc0" # its terms
grant trivet:slicesvc readwrite "$root/switches/slicesvc" # its loops in dry run that write
grant trivet:slicesvc read "$root/members/slicesvc" "$root/terms/slicesvc0" # one watch of all
