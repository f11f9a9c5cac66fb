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

// Directory follows the members of every service of a cluster. Its methods are safe for concurrent
// use.
type Directory struct {
	follower  follower
	prefix    string
	malformed *malformedKeys    // belongs to Run
	found     map[string]Member // by key; belongs to Run
	running   atomic.Bool
	state     atomic.Pointer[listing]
}

// listing is the state that Run published last. It is immutable, except that changed is closed.
type listing struct {
	members []Member
	problem error
	changed chan struct{} // closed when a listing with other members replaces this one
}

// NewDirectory returns an empty directory that uses client; the caller closes client. It starts
// nothing.
func NewDirectory(client *clientv3.Client, cluster string, logger *slog.Logger) *Directory {
	prefix := membersPrefix(cluster)
	d := &Directory{
		follower: follower{client: client, keys: prefixRange(prefix), logger: logger},
		prefix:   prefix, malformed: newMalformedKeys(logger), found: map[string]Member{},
	}
	d.state.Store(&listing{problem: errors.New("members not listed yet"), changed: make(chan struct{})})
	return d
}

// Run keeps the directory in sync with etcd until ctx ends; then it returns nil. While etcd is
// unreachable, the last known members stay. A second call while one runs is an error.
func (d *Directory) Run(ctx context.Context) error {
	if !d.running.CompareAndSwap(false, true) {
		return errors.New("directory is running already: Run was called twice")
	}
	defer d.running.Store(false)
	d.follower.run(ctx, d.apply)
	return nil
}

// Members returns the members, ordered by service and id. Do not modify the slice.
func (d *Directory) Members() []Member { return d.state.Load().members }

// Check returns nil while the directory follows etcd, else the reason why not. It notices a lost
// connection at the next resync, within a minute.
func (d *Directory) Check() error { return d.state.Load().problem }

// Changed returns a channel that is closed at the next change of Members. Call it before Members,
// or a change between the two calls is missed.
func (d *Directory) Changed() <-chan struct{} { return d.state.Load().changed }

func (d *Directory) apply(c change) {
	if c.whole {
		d.malformed.keep(c.entries)
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
		d.malformed.report(entry.Key, "not <service>/<replica>")
		return
	}
	announced, err := decodeMember(service, id, entry.Value)
	if err != nil {
		d.malformed.report(entry.Key, err.Error())
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
