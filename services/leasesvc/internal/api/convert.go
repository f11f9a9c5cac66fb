package api

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// converter converts API messages to the types of the session controller and back.
type converter struct{ catalog *class.Catalog }

// key returns the session of a resource name; false if no class has the name's namespace.
func (c converter) key(name string) (session.Key, bool) {
	namespace, lease, _ := strings.Cut(strings.TrimPrefix(name, "namespaces/"), "/leases/")
	id, served := c.catalog.ByNamespace(namespace)
	return session.Key{Class: id, Name: lease}, served
}

func (c converter) name(key session.Key) string {
	return fmt.Sprintf("namespaces/%s/leases/%s", c.catalog.Get(key.Class).Namespace, key.Name)
}

// classesIn returns the set of classes in a parent, by session.ClassID; nil for all classes.
func (c converter) classesIn(parent string) []bool {
	namespace := strings.TrimPrefix(parent, "namespaces/")
	if namespace == "" || namespace == "-" {
		return nil
	}
	return c.catalog.Mark(namespace)
}

func (c converter) lease(l *sessioncontroller.Lease) *leasev1.Lease {
	key := l.Holder.Key
	return &leasev1.Lease{
		Name:         c.name(key),
		Holder:       &leasev1.Holder{Class: c.catalog.Get(key.Class).Name, Name: key.Name, BootId: l.Holder.Boot},
		State:        stateOf(l.State),
		Epoch:        l.Epoch,
		StartTime:    Timestamp(l.StartTime),
		LastBeatTime: Timestamp(l.LastBeatTime),
		Deadline:     Timestamp(l.Deadline),
		Sequence:     l.Sequence,
		Write:        writeOf(&l.Write),
		Shard:        int32(l.Shard),
		Duplicate:    duplicateOf(l.Duplicate),
	}
}

func duplicateOf(d *sessioncontroller.Duplicate) *leasev1.Lease_Duplicate {
	if d == nil {
		return nil
	}
	return &leasev1.Lease_Duplicate{BootId: d.Boot, RefuseTime: Timestamp(d.LastRejectionTime), Refusals: d.Rejections}
}

func stateOf(state session.State) leasev1.Lease_State {
	return [...]leasev1.Lease_State{
		session.Alive:   leasev1.Lease_STATE_ALIVE,
		session.Suspect: leasev1.Lease_STATE_SUSPECT,
		session.Expired: leasev1.Lease_STATE_EXPIRED,
	}[state]
}

// stateFrom returns session.Gone, which selects all states, for STATE_UNSPECIFIED.
func stateFrom(state leasev1.Lease_State) session.State {
	return map[leasev1.Lease_State]session.State{
		leasev1.Lease_STATE_ALIVE:   session.Alive,
		leasev1.Lease_STATE_SUSPECT: session.Suspect,
		leasev1.Lease_STATE_EXPIRED: session.Expired,
	}[state]
}

func writeOf(w *sessioncontroller.WriteStatus) *leasev1.Lease_Write {
	return &leasev1.Lease_Write{
		State:           writeStateOf(w.State),
		RenewTime:       Timestamp(w.RenewTime),
		ResourceVersion: w.ResourceVersion,
		WriteTime:       Timestamp(w.WriteTime),
		LastError:       strings.ToValidUTF8(w.LastError, "�"),
		Failures:        w.Failures,
		DueTime:         Timestamp(w.Due),
		Reason:          w.Reason.String(),
	}
}

func writeStateOf(state writeback.State) leasev1.Lease_Write_State {
	return [...]leasev1.Lease_Write_State{
		writeback.Pending:  leasev1.Lease_Write_STATE_PENDING,
		writeback.Written:  leasev1.Lease_Write_STATE_WRITTEN,
		writeback.Retrying: leasev1.Lease_Write_STATE_RETRYING,
		writeback.NoOwner:  leasev1.Lease_Write_STATE_NO_OWNER,
	}[state]
}

func eventTypeOf(eventType sessioncontroller.EventType) leasev1.WatchLeasesResponse_Type {
	return [...]leasev1.WatchLeasesResponse_Type{
		sessioncontroller.Added:    leasev1.WatchLeasesResponse_TYPE_ADDED,
		sessioncontroller.Modified: leasev1.WatchLeasesResponse_TYPE_MODIFIED,
		sessioncontroller.Deleted:  leasev1.WatchLeasesResponse_TYPE_DELETED,
		sessioncontroller.Bookmark: leasev1.WatchLeasesResponse_TYPE_BOOKMARK,
	}[eventType]
}

// Timestamp returns nil for the zero time.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
