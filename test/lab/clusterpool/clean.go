package clusterpool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// cluster is a real control plane, and its keys in etcd after the start.
type cluster struct {
	*devcluster.Cluster
	etcd    *clientv3.Client
	kube    *discovery.DiscoveryClient
	initial map[string][]byte
}

const (
	startTimeout = 3 * time.Minute
	// settleTime is longer than what kube-apiserver writes late in its start needs.
	settleTime = 300 * time.Millisecond
)

func startControlPlane(ctx context.Context) (controlPlane, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	started, err := devcluster.Start(ctx, devcluster.Config{})
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: started}
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *cluster) prepare(ctx context.Context) (err error) {
	config := c.RESTConfig()
	config.WarningHandler = rest.NoWarnings{} // "Endpoints is deprecated", at every list
	if c.kube, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return fmt.Errorf("make discovery client: %w", err)
	}
	if c.etcd, err = c.EtcdClient(); err != nil {
		return err
	}
	for {
		before := c.initial
		if c.initial, err = c.keys(ctx); err != nil {
			return err
		}
		if startIsOver(c.initial) && maps.EqualFunc(before, c.initial, bytes.Equal) {
			return nil
		}
		time.Sleep(settleTime)
	}
}

// Stop stops the servers.
func (c *cluster) Stop() error {
	var err error
	if c.etcd != nil {
		err = c.etcd.Close()
	}
	return errors.Join(err, c.Cluster.Stop())
}

// renewedKeyPatterns match keys whose values kube-apiserver changes every few seconds. The keys
// follow from the name of this machine, so restarted and additional kube-apiservers write the same.
var renewedKeyPatterns = []string{
	"/registry/leases/kube-system/apiserver-*",
	"/registry/peerserverleases/apiserver-*",
}

func isRenewed(key string) bool {
	return slices.ContainsFunc(renewedKeyPatterns, func(pattern string) bool { return matches(pattern, key) })
}

func matches(pattern, key string) bool {
	matched, _ := path.Match(pattern, key)
	return matched
}

// startIsOver reports whether kube-apiserver has written the keys that it writes last.
func startIsOver(keys map[string][]byte) bool {
	names := slices.Collect(maps.Keys(keys))
	for _, last := range append([]string{"/registry/services/specs/default/kubernetes"}, renewedKeyPatterns...) {
		if !slices.ContainsFunc(names, func(key string) bool { return matches(last, key) }) {
			return false
		}
	}
	return true
}

// compactionKey is written every five minutes by kube-apiserver, which panics if it is deleted.
const compactionKey = "compact_rev_key"

// keys returns all of etcd but the compactionKey.
func (c *cluster) keys(ctx context.Context) (map[string][]byte, error) {
	all, err := c.etcd.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read etcd: %w", err)
	}
	keys := make(map[string][]byte, len(all.Kvs))
	for _, kv := range all.Kvs {
		if key := string(kv.Key); key != compactionKey {
			keys[key] = kv.Value
		}
	}
	return keys, nil
}

// clean writes to etcd directly, because kube-apiserver deletes some objects late or never: the
// cluster has no controllers. Controllers in kube-apiserver may answer to such a write with one of
// their own, so it repeats until it finds no difference after the caches have all writes.
func (c *cluster) clean(ctx context.Context) (err error) {
	if err := c.startStopped(ctx); err != nil {
		return err
	}
	names := "nothing"
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w; last written: %s", err, names)
		}
	}()
	for cached := false; ; cached = true {
		keys, err := c.keys(ctx)
		if err != nil {
			return err
		}
		writes, changed := c.differences(keys)
		if len(writes) == 0 && cached {
			return nil
		}
		names = cmp.Or(changed, names)
		if err := c.write(ctx, writes); err != nil {
			return err
		}
		if err := c.waitForCaches(ctx); err != nil {
			return err
		}
	}
}

// startStopped starts the servers that do not run. It stops the cluster when ctx ends, because Stop
// ends a start.
func (c *cluster) startStopped(ctx context.Context) error {
	inTime := context.AfterFunc(ctx, func() { _ = c.Cluster.Stop() })
	err := c.StartEtcd()
	if err == nil {
		err = c.StartAPIServer()
	}
	if !inTime() {
		return errors.Join(fmt.Errorf("start the stopped servers: %w", ctx.Err()), err)
	}
	return err
}

// differences returns the writes that bring back the initial keys, and the first of their keys. The
// values of renewed keys may differ.
func (c *cluster) differences(keys map[string][]byte) (writes []clientv3.Op, names string) {
	var changed []string
	for key := range keys {
		if _, found := c.initial[key]; !found {
			writes, changed = append(writes, clientv3.OpDelete(key)), append(changed, key)
		}
	}
	for key, value := range c.initial {
		if now, found := keys[key]; !found || !bytes.Equal(now, value) && !isRenewed(key) {
			writes, changed = append(writes, clientv3.OpPut(key, string(value))), append(changed, key)
		}
	}
	slices.Sort(changed)
	return writes, strings.Join(changed[:min(len(changed), 5)], " ")
}

// write stays below etcd's limit of 128 writes in a transaction.
func (c *cluster) write(ctx context.Context, writes []clientv3.Op) error {
	for chunk := range slices.Chunk(writes, 100) {
		if _, err := c.etcd.Txn(ctx).Then(chunk...).Commit(); err != nil {
			return fmt.Errorf("write to etcd: %w", err)
		}
	}
	return nil
}

// waitForCaches lists each kind of object. kube-apiserver answers such a list when its cache of
// this kind has everything that was written before.
func (c *cluster) waitForCaches(ctx context.Context) error {
	var err error
	for {
		if err = c.listAll(ctx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not clean in time: %w", err)
		case <-time.After(settleTime):
		}
	}
}

func (c *cluster) listAll(ctx context.Context) error {
	groups, err := c.kube.ServerPreferredResources()
	if err != nil {
		return fmt.Errorf("discover kinds: %w", err)
	}
	var mu sync.Mutex // guards problems
	var problems []error
	var lists sync.WaitGroup
	for _, group := range groups {
		for _, resource := range group.APIResources {
			if !slices.Contains(resource.Verbs, "list") {
				continue
			}
			lists.Go(func() {
				err := c.list(ctx, group.GroupVersion, resource.Name)
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, err)
			})
		}
	}
	lists.Wait()
	return errors.Join(problems...)
}

// list ignores a kind that is gone since it was discovered.
func (c *cluster) list(ctx context.Context, groupVersion, resource string) error {
	prefix := "/apis"
	if groupVersion == "v1" {
		prefix = "/api"
	}
	err := c.kube.RESTClient().Get().AbsPath(prefix, groupVersion, resource).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("list %s of %s: %w", resource, groupVersion, err)
	}
	return nil
}
