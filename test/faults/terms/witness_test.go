package terms

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

// witness follows etcd from its first revision and misses nothing: compactions wait for it.
type witness struct {
	mu       sync.Mutex // guards what follows
	revision int64
	versions []history.Version
	claims   []history.Claim
	held     map[int]int // place of a shard's claim among claims
	err      error
}

// follow watches until ctx ends.
func (w *witness) follow(ctx context.Context, client *clientv3.Client) {
	for ctx.Err() == nil {
		for answer := range client.Watch(ctx, term.Prefix(cluster), clientv3.WithPrefix(), clientv3.WithRev(w.seen()+1)) {
			if err := answer.Err(); err != nil {
				w.fail(err)
				return
			}
			w.take(answer.Events)
		}
	}
}

// fail notes what would leave a hole in the testimony.
func (w *witness) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, err)
}

func (w *witness) take(events []*clientv3.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, event := range events {
		key, revision := string(event.Kv.Key), event.Kv.ModRevision
		var err error
		if suffix, ok := strings.CutPrefix(key, registersPrefix()); ok {
			err = w.version(suffix, event)
		} else if suffix, ok := strings.CutPrefix(key, termsPrefix()); ok {
			err = w.claim(suffix, event)
		}
		if err != nil {
			w.err = errors.Join(w.err, fmt.Errorf("key %s: %w", key, err))
		}
		w.revision = max(w.revision, revision)
	}
}

func (w *witness) version(suffix string, event *clientv3.Event) error {
	shard, err := strconv.Atoi(suffix)
	if err != nil {
		return err
	}
	register, err := parse(event.Kv.Value)
	w.versions = append(w.versions, history.Version{Shard: shard, Revision: event.Kv.ModRevision, Register: register})
	return err
}

func (w *witness) claim(suffix string, event *clientv3.Event) error {
	shard, err := strconv.Atoi(suffix)
	if err != nil {
		return err
	}
	if event.Type == clientv3.EventTypeDelete {
		w.claims[w.held[shard]].Gone = event.Kv.ModRevision
		delete(w.held, shard)
		return nil
	}
	if !event.IsCreate() {
		return errors.New("a term key was modified")
	}
	w.held[shard] = len(w.claims)
	w.claims = append(w.claims, history.Claim{Shard: shard, Holder: string(event.Kv.Value), Epoch: event.Kv.CreateRevision})
	return nil
}

func (w *witness) seen() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.revision
}

// holders returns who has claimed which shard now.
func (w *witness) holders() map[int]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	holders := map[int]string{}
	for shard, i := range w.held {
		holders[shard] = w.claims[i].Holder
	}
	return holders
}

// testimony is all that was seen.
func (w *witness) testimony() ([]history.Version, []history.Claim, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.versions), slices.Clone(w.claims), w.err
}
