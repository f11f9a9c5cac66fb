package term

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Member is one running replica of a service, as its member key describes it to the others.
type Member struct {
	// ID is unique among the replicas of the service and new at every start.
	ID string `json:"id"`
	// Service is the name of the service, for example "leasesvc".
	Service string `json:"service"`
	// Cluster is the name of the cluster whose duties the replica carries.
	Cluster string `json:"cluster"`
	// Version of the build.
	Version string `json:"version,omitempty"`
	// GRPCAddress is where others reach the replica's gRPC server, host:port.
	GRPCAddress string `json:"grpcAddress,omitempty"`
	// AdminAddress is where others reach the replica's admin HTTP server, host:port.
	AdminAddress string `json:"adminAddress,omitempty"`
	// StartTime is when the process started, by its own clock.
	StartTime time.Time `json:"startTime"`
}

// equal compares the start times as moments, not as representations.
func (m Member) equal(other Member) bool {
	sameStart := m.StartTime.Equal(other.StartTime)
	m.StartTime, other.StartTime = time.Time{}, time.Time{}
	return sameStart && m == other
}

// announcement is the value of a member key.
type announcement struct {
	Member
	// Shards is the number of shards into which the replica divides the work, 0 when it takes no part in dividing it.
	Shards int `json:"shards,omitempty"`
	// Leaving says that the replica stops: it hands its shards over and should get no others.
	Leaving bool `json:"leaving,omitempty"`
	// Unready says that the replica should get no shards while others can do their work. Older versions do not say it of
	// themselves, and count as ready.
	Unready bool `json:"unready,omitempty"`
}

func (a announcement) encode() (string, error) {
	value, err := json.Marshal(a)
	return string(value), err
}

// decodeMember reads the value of the member key that ends in service and id. A value that belongs to another key is as
// malformed as one that cannot be read: whoever trusted it would reach the wrong replica.
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

// validate returns all that is wrong with a member.
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

// validName keeps names apart from what could be mistaken for a path, a terminal escape or markup wherever they are shown.
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
