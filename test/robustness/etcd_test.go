package robustness

import (
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
)

// etcdMembers is the number of members of etcd.
const etcdMembers = 3

// links are the proxies between one replica and the members of etcd, in the order of the members.
type links []*faultproxy.Relay

func newLinks(t testing.TB, cluster *devcluster.Cluster) links {
	t.Helper()
	var all links
	for _, endpoint := range cluster.EtcdEndpoints() {
		all = append(all, faultproxy.NewRelay(t, strings.TrimPrefix(endpoint, "https://")))
	}
	return all
}

// endpoints are the URLs of etcd for the replica.
func (l links) endpoints() string {
	var urls []string
	for _, link := range l {
		urls = append(urls, "https://"+link.Addr())
	}
	return strings.Join(urls, ",")
}

// BlockToTarget holds the bytes to all members, or ends that.
func (l links) BlockToTarget(blocked bool) {
	for _, link := range l {
		link.BlockToTarget(blocked)
	}
}

// BlockFromTarget holds the bytes from all members, or ends that.
func (l links) BlockFromTarget(blocked bool) {
	for _, link := range l {
		link.BlockFromTarget(blocked)
	}
}

// SetDelay makes the bytes to and from all members arrive late.
func (l links) SetDelay(delay time.Duration) {
	for _, link := range l {
		link.SetDelay(delay)
	}
}

// Disconnect closes the connections to all members, and new ones while disconnected.
func (l links) Disconnect(disconnected bool) {
	for _, link := range l {
		link.Disconnect(disconnected)
	}
}
