package term

import (
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Prefix is the prefix of every key of a cluster, "/trivet/<cluster>/".
func Prefix(cluster string) string { return "/trivet/" + cluster + "/" }

func membersPrefix(cluster string) string { return Prefix(cluster) + "members/" }

// keys are the keys of one service in one cluster.
type keys struct {
	service string
	members string // prefix of the service's member keys
	terms   string // prefix of the service's term keys
}

func keysOf(cluster, service string) keys {
	return keys{
		service: service,
		members: membersPrefix(cluster) + service + "/",
		terms:   Prefix(cluster) + "terms/" + service + "/",
	}
}

func (k keys) member(id string) string { return k.members + id }

func (k keys) term(shard int) string { return k.terms + strconv.Itoa(shard) }

// shard returns the number that a term key ends in. Only the spelling that term writes counts, so that no shard has two keys.
func (k keys) shard(key string) (int, bool) {
	suffix := strings.TrimPrefix(key, k.terms)
	shard, err := strconv.Atoi(suffix)
	return shard, err == nil && shard >= 0 && strconv.Itoa(shard) == suffix
}

// span is where the keys lie: the lists that hold them, and the one range, perhaps wider, that a single watch covers.
type span struct {
	prefixes []string
	from, to string
}

// span covers members and terms by one watch, so that one etcd transaction arrives as one piece. The range also covers keys
// of other services, which change rarely; it leaves out apiservers/ and checkpoints/, which change often.
func (k keys) span() span {
	return span{prefixes: []string{k.members, k.terms}, from: k.members, to: clientv3.GetPrefixRangeEnd(k.terms)}
}

func prefixSpan(prefix string) span {
	return span{prefixes: []string{prefix}, from: prefix, to: clientv3.GetPrefixRangeEnd(prefix)}
}
