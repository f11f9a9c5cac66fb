package leasesvc

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// catalog translates between the words of the API and the numbers of the cores.
type catalog struct {
	classes []Class
	byName  map[string]session.ClassID
	shards  int
}

func newCatalog(cfg *Config) catalog {
	c := catalog{classes: cfg.classes(), shards: cfg.Shards, byName: map[string]session.ClassID{}}
	for i, class := range c.classes {
		c.byName[class.Name] = session.ClassID(i)
	}
	return c
}

// holder is false when the class is not served.
func (c catalog) holder(h *leasev1.Holder) (session.Holder, bool) {
	class, known := c.byName[h.GetClass()]
	return session.Holder{Key: session.Key{Class: class, Name: h.GetName()}, Boot: h.GetBootId()}, known
}

// introduction is false when the class is not served.
func (c catalog) introduction(h *leasev1.Holder, sequence uint64) (sessioncontroller.Registration, bool) {
	holder, known := c.holder(h)
	return sessioncontroller.Registration{Holder: holder, Shard: c.shardOf(h), Sequence: sequence}, known
}

// shardOf divides by the words of the API: the numbers of classes depend on their order in the configuration.
func (c catalog) shardOf(h *leasev1.Holder) int { return shard.Of(h.GetClass(), h.GetName(), c.shards) }

func (c catalog) shardOfKey(key session.Key) int {
	return shard.Of(c.classes[key.Class].Name, key.Name, c.shards)
}

// key is false when no class has its Leases in the namespace of the name.
func (c catalog) key(name string) (session.Key, bool) {
	rest := strings.TrimPrefix(name, "namespaces/")
	namespace, lease, _ := strings.Cut(rest, "/leases/")
	for i, class := range c.classes {
		if class.Namespace == namespace {
			return session.Key{Class: session.ClassID(i), Name: lease}, true
		}
	}
	return session.Key{}, false
}

func (c catalog) name(key session.Key) string {
	return fmt.Sprintf("namespaces/%s/leases/%s", c.classes[key.Class].Namespace, key.Name)
}

// within marks the classes below a parent; nil marks all.
func (c catalog) within(parent string) []bool {
	namespace := strings.TrimPrefix(parent, "namespaces/")
	if namespace == "" || namespace == "-" {
		return nil
	}
	marked := make([]bool, len(c.classes))
	for i, class := range c.classes {
		marked[i] = class.Namespace == namespace
	}
	return marked
}

func (c catalog) lease(l *sessioncontroller.Lease) *leasev1.Lease {
	return &leasev1.Lease{
		Name:         c.name(l.Holder.Key),
		Holder:       &leasev1.Holder{Class: c.classes[l.Holder.Key.Class].Name, Name: l.Holder.Key.Name, BootId: l.Holder.Boot},
		State:        stateOf(l.State),
		Epoch:        l.Epoch,
		StartTime:    timestamp(l.StartTime),
		LastBeatTime: timestamp(l.LastBeatTime),
		Deadline:     timestamp(l.Deadline),
		Sequence:     l.Sequence,
		Write:        writeOf(l.Write),
		Shard:        int32(l.Shard),
		Duplicate:    duplicateOf(l.Duplicate),
	}
}

// duplicateOf leaves out what there is not.
func duplicateOf(d *sessioncontroller.Duplicate) *leasev1.Lease_Duplicate {
	if d == nil {
		return nil
	}
	return &leasev1.Lease_Duplicate{BootId: d.Boot, RefuseTime: timestamp(d.RejectTime), Refusals: d.Rejections}
}

func (c catalog) leases(list []sessioncontroller.Lease) []*leasev1.Lease {
	leases := make([]*leasev1.Lease, 0, len(list))
	for i := range list {
		leases = append(leases, c.lease(&list[i]))
	}
	return leases
}

func grantOf(g sessioncontroller.Grant) *leasev1.Grant {
	return &leasev1.Grant{Epoch: g.Epoch, NextInterval: duration(g.Interval), Ttl: duration(g.TTL)}
}

func stateOf(state session.State) leasev1.Lease_State {
	switch state {
	case session.Alive:
		return leasev1.Lease_STATE_ALIVE
	case session.Suspect:
		return leasev1.Lease_STATE_SUSPECT
	case session.Expired:
		return leasev1.Lease_STATE_EXPIRED
	}
	return leasev1.Lease_STATE_UNSPECIFIED
}

// stateFrom is session.Gone, which stands for all, when no state is given.
func stateFrom(state leasev1.Lease_State) session.State {
	switch state {
	case leasev1.Lease_STATE_ALIVE:
		return session.Alive
	case leasev1.Lease_STATE_SUSPECT:
		return session.Suspect
	case leasev1.Lease_STATE_EXPIRED:
		return session.Expired
	}
	return session.Gone
}

func writeOf(w sessioncontroller.WriteStatus) *leasev1.Lease_Write {
	return &leasev1.Lease_Write{
		State:           writeStateOf(w.State),
		RenewTime:       timestamp(w.RenewTime),
		ResourceVersion: w.ResourceVersion,
		WriteTime:       timestamp(w.WriteTime),
		LastError:       strings.ToValidUTF8(w.LastError, "�"),
		Failures:        w.Failures,
		DueTime:         timestamp(w.Due),
		Reason:          w.Reason.String(),
	}
}

func writeStateOf(state writeback.State) leasev1.Lease_Write_State {
	switch state {
	case writeback.Pending:
		return leasev1.Lease_Write_STATE_PENDING
	case writeback.Written:
		return leasev1.Lease_Write_STATE_WRITTEN
	case writeback.Retrying:
		return leasev1.Lease_Write_STATE_RETRYING
	case writeback.NoOwner:
		return leasev1.Lease_Write_STATE_NO_OWNER
	}
	return leasev1.Lease_Write_STATE_UNSPECIFIED
}

func eventTypeOf(what sessioncontroller.EventType) leasev1.WatchLeasesResponse_Type {
	switch what {
	case sessioncontroller.Added:
		return leasev1.WatchLeasesResponse_TYPE_ADDED
	case sessioncontroller.Modified:
		return leasev1.WatchLeasesResponse_TYPE_MODIFIED
	case sessioncontroller.Deleted:
		return leasev1.WatchLeasesResponse_TYPE_DELETED
	case sessioncontroller.Bookmark:
		return leasev1.WatchLeasesResponse_TYPE_BOOKMARK
	}
	return leasev1.WatchLeasesResponse_TYPE_UNSPECIFIED
}

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// timestamp leaves out what is not known.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
