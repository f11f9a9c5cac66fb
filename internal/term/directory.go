package term

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Directory knows the members of every service of a cluster, as the gateway needs them. Its methods are safe for concurrent
// use.
type Directory struct {
	follower follower
	prefix   string
	odd      *oddities         // belongs to Run
	found    map[string]Member // by key; belongs to Run
	running  atomic.Bool
	state    atomic.Pointer[listing]
}

// listing is what Run last published. It is immutable but for the closing of changed.
type listing struct {
	members []Member
	problem error
	changed chan struct{} // closed when a listing with other members replaces this one
}

// NewDirectory returns an empty directory that uses client, which stays the caller's. It starts nothing.
func NewDirectory(client *clientv3.Client, cluster string, logger *slog.Logger) *Directory {
	prefix := membersPrefix(cluster)
	d := &Directory{
		follower: follower{client: client, span: prefixSpan(prefix), logger: logger},
		prefix:   prefix, odd: newOddities(logger), found: map[string]Member{},
	}
	d.state.Store(&listing{problem: errors.New("members not listed yet"), changed: make(chan struct{})})
	return d
}

// Run keeps the directory in step with etcd until ctx ends; then it returns nil. While etcd cannot be reached the members
// last known stay. Only one Run may be under way at a time.
func (d *Directory) Run(ctx context.Context) error {
	if !d.running.CompareAndSwap(false, true) {
		return errors.New("directory is running already: Run was called twice")
	}
	defer d.running.Store(false)
	d.follower.run(ctx, d.apply)
	return nil
}

// Members returns the members, ordered by service and id. The slice is shared; do not modify it.
func (d *Directory) Members() []Member { return d.state.Load().members }

// Check returns nil while the directory follows etcd, else what keeps it from doing so. A connection that is lost is noticed
// at the next resync, within a minute.
func (d *Directory) Check() error { return d.state.Load().problem }

// Changed returns a channel that is closed when Members changes next. Ask for it before Members, so that no change falls
// between the two.
func (d *Directory) Changed() <-chan struct{} { return d.state.Load().changed }

func (d *Directory) apply(c change) {
	if c.whole {
		d.odd.keep(c.entries)
		clear(d.found)
		for _, entry := range c.entries {
			d.put(entry)
		}
	}
	for _, event := range c.events {
		if event.Type == clientv3.EventTypeDelete {
			delete(d.found, string(event.Kv.Key))
		} else {
			d.put(event.Kv)
		}
	}
	d.publish(c.err)
}

func (d *Directory) put(entry *mvccpb.KeyValue) {
	key := string(entry.Key)
	service, id, ok := strings.Cut(strings.TrimPrefix(key, d.prefix), "/")
	if !ok {
		d.odd.report(entry.Key, "not <service>/<replica>")
		return
	}
	announced, err := decodeMember(service, id, entry.Value)
	if err != nil {
		d.odd.report(entry.Key, err.Error())
		delete(d.found, key)
		return
	}
	d.found[key] = announced.Member
}

func (d *Directory) publish(problem error) {
	last := d.state.Load()
	next := &listing{problem: problem, changed: last.changed}
	next.members = slices.SortedFunc(maps.Values(d.found), func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.ID, b.ID))
	})
	if slices.EqualFunc(last.members, next.members, Member.equal) {
		d.state.Store(next)
		return
	}
	next.changed = make(chan struct{})
	d.state.Store(next)
	close(last.changed)
}
