package term

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

func membersPrefix(cluster string) string { return etcdconn.KeyPrefix(cluster) + "members/" }

// keys are the keys of one service in one cluster.
type keys struct {
	service string
	members string // prefix of the service's member keys
	terms   string // prefix of the service's term keys
	// switches is the key that names the loops in dry run that write.
	switches string
}

func keysOf(cluster, service string) keys {
	return keys{
		service: service,
		members: membersPrefix(cluster) + service + "/",
		terms:   etcdconn.KeyPrefix(cluster) + "terms/" + service + "/",

		switches: etcdconn.KeyPrefix(cluster) + "switches/" + service,
	}
}

func (k keys) member(id string) string { return k.members + id }

func (k keys) term(shard int) string { return k.terms + strconv.Itoa(shard) }

// shard returns the number at the end of a term key. It accepts only the spelling that this package
// writes, so that no shard has two keys.
func (k keys) shard(key string) (int, bool) {
	suffix := strings.TrimPrefix(key, k.terms)
	shard, err := strconv.Atoi(suffix)
	return shard, err == nil && shard >= 0 && strconv.Itoa(shard) == suffix
}

// keyRange is the set of followed keys: the prefixes that are listed, and the range of one watch,
// which may be wider.
type keyRange struct {
	prefixes []string
	from, to string
}

// watched returns one range for members, the switch and terms, so that one etcd transaction arrives
// in one piece. The range includes keys of other services, which change rarely. It excludes
// apiservers/ and checkpoints/, which change often. A service without shards has no terms and may
// not read those of others.
func (k keys) watched(shards int) keyRange {
	if shards == 0 {
		return prefixRange(k.members)
	}
	return keyRange{prefixes: []string{k.members, k.switches, k.terms}, from: k.members, to: clientv3.GetPrefixRangeEnd(k.terms)}
}

func prefixRange(prefix string) keyRange {
	return keyRange{prefixes: []string{prefix}, from: prefix, to: clientv3.GetPrefixRangeEnd(prefix)}
}

// Member is one running replica of a service, as its member key describes it.
type Member struct {
	// ID is unique among the replicas of the service and new at every start.
	ID string `json:"id"`
	// Service is the name of the service, for example "leasesvc".
	Service string `json:"service"`
	// Cluster is the name of the Kubernetes cluster.
	Cluster string `json:"cluster"`
	// Version of the build.
	Version string `json:"version,omitempty"`
	// GRPCAddress is the host:port of the replica's gRPC server.
	GRPCAddress string `json:"grpcAddress,omitempty"`
	// AdminAddress is the host:port of the replica's admin HTTP server.
	AdminAddress string `json:"adminAddress,omitempty"`
	// StartTime is when the process started, by its own clock.
	StartTime time.Time `json:"startTime"`
}

// equal compares the start times as instants, not as representations.
func (m Member) equal(other Member) bool {
	sameStart := m.StartTime.Equal(other.StartTime)
	m.StartTime, other.StartTime = time.Time{}, time.Time{}
	return sameStart && m == other
}

// validate returns all problems of a member.
func (m Member) validate() []error {
	var problems []error
	for _, name := range []struct{ field, value string }{
		{field: "replica id", value: m.ID},
		{field: "service", value: m.Service},
		{field: "cluster", value: m.Cluster},
	} {
		if !validName(name.value) {
			problems = append(problems, fmt.Errorf("%s %q: must be lower-case letters, digits, '-' and '.', at most 253", name.field, name.value))
		}
	}
	for _, address := range []struct{ field, value string }{
		{field: "gRPC address", value: m.GRPCAddress},
		{field: "admin address", value: m.AdminAddress},
	} {
		if !validAddress(address.value) {
			problems = append(problems, fmt.Errorf("%s %q: must be host:port or empty", address.field, address.value))
		}
	}
	return problems
}

// announcement is the value of a member key.
type announcement struct {
	Member
	// Shards is the replica's number of shards, 0 if it holds none.
	Shards int `json:"shards,omitempty"`
	// DryRun is that of Config. Older versions do not write it and write what they plan.
	DryRun string `json:"dry_run,omitempty"`
	// Leaving says that the replica stops: it releases its shards and should get no others.
	Leaving bool `json:"leaving,omitempty"`
	// Unready says that the replica should get no shards while others are ready. Older versions do
	// not write it and count as ready.
	Unready bool `json:"unready,omitempty"`
	// Able says of an unready replica that it can do the work now. Older versions do not write it,
	// so their unready replicas count as unable.
	Able bool `json:"able,omitempty"`
	// Released are the last terms that the replica released, each as "<shard>@<epoch>", separated
	// by spaces. Their bodies have returned. Older versions do not write it.
	Released string `json:"released,omitempty"`
}

// keepReleased bounds announcement.Released. A replica that reads the member key only after as many
// releases starts the shard after a pause.
const keepReleased = 128

// withReleased adds ended terms to the last released ones.
func (a announcement) withReleased(ended []*heldShard) announcement {
	terms := strings.Fields(a.Released)
	for _, h := range ended {
		terms = append(terms, releasedTerm(h.shard, h.term.Epoch()))
	}
	a.Released = strings.Join(terms[max(0, len(terms)-keepReleased):], " ")
	return a
}

func releasedTerm(shard int, epoch int64) string { return fmt.Sprintf("%d@%d", shard, epoch) }

// released says whether the replica released a term lately.
func (a announcement) released(shard int, epoch int64) bool {
	return slices.Contains(strings.Fields(a.Released), releasedTerm(shard, epoch))
}

// rank returns the rank that the member announced.
func (a announcement) rank() sharding.Rank {
	switch {
	case !a.Unready:
		return sharding.Ready
	case a.Able:
		return sharding.Able
	default:
		return sharding.Unable
	}
}

func (a announcement) encode() (string, error) {
	value, err := json.Marshal(a)
	return string(value), err
}

// decodeMember reads the value of the member key that ends in service and id. A value that
// describes another replica is malformed, because a caller would reach the wrong one.
func decodeMember(service, id string, value []byte) (announcement, error) {
	var a announcement
	if err := json.Unmarshal(value, &a); err != nil {
		return announcement{}, fmt.Errorf("read value: %w", err)
	}
	if a.ID != id || a.Service != service {
		return announcement{}, fmt.Errorf("value describes replica %q of %q", a.ID, a.Service)
	}
	return a, errors.Join(a.validate()...)
}

// validName rejects names that could be read as a path, a terminal escape or markup.
func validName(name string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789-."
	return name != "" && len(name) <= 253 && strings.Trim(name, allowed) == "" && !strings.HasPrefix(name, ".")
}

func validAddress(address string) bool {
	if address == "" {
		return true
	}
	_, port, err := net.SplitHostPort(address)
	return err == nil && port != "" && strings.IndexFunc(address, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
}
